"""Exercises of lessons 07 to 08d: shards, configurations, checkpoints, meshes, rows, links."""

import math
from collections import Counter

import torch

from bootcamp.classroom.tasks import FunctionTask, ScriptTask, Wrong

DRAWN = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))


@FunctionTask.from_solution(
    hint="Which steps go number by number, and which need all rows of the matrix?",
    stronger="torch.cat puts the ranks' rows below each other, and .chunk(ranks) cuts them again.",
    cases=tuple((*(matrix.chunk(2) for matrix in DRAWN[:2]), rank) for rank in (0, 1)),
    mistakes={
        ("torch.cat(ahead)", "ahead[rank]", ".chunk(len(ahead))[rank]", ""): "Those rows are "
        "orthogonal to each other, not to those of other ranks: gather before you make orthogonal.",
        ("g + 0.95 * m", "g"): "That leaves the momentum out. It is added before: a sum with an "
        "orthogonal matrix is not orthogonal.",
        (".chunk(len(ahead))[rank]", ""): "That is the complete matrix: a rank keeps its rows.",
    },
)
def direction_of_rank(gradients, momenta, rank):
    """A rank's rows of what Muon steps along. The arguments have the rows of each rank.

    The matrix gradient + 0.95 * momentum becomes orthogonal: `u @ vt` of its singular value
    decomposition, `u, _, vt = torch.linalg.svd(matrix, full_matrices=False)`.
    """
    ahead = [g + 0.95 * m for g, m in zip(gradients, momenta, strict=True)]
    u, _, vt = torch.linalg.svd(torch.cat(ahead), full_matrices=False)
    return (u @ vt).chunk(len(ahead))[rank]


@FunctionTask.from_solution(
    hint="Which of parameters, gradients and optimizer does the stage divide? Which are on a GPU?",
    stronger="4, 4 and 12 bytes, or 2, 2 and 12 in bf16. Stage 1 divides the last by ranks, stage "
    "2 the last two, stage 3 all. An offloaded optimizer is not on the GPU.",
    cases=(
        ({"zero_optimization": {"stage": 1}}, 8),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, 4),
        ({"zero_optimization": {"stage": 3}, "bf16": {"enabled": False}}, 8),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, 4),
    ),
    mistakes={
        ("[12,", "[8,"): "The optimizer also works on a float32 copy of its part: 8 + 4.",
        ('.get("enabled")', " or True"): "Read the entry: bf16 may be there and not be enabled.",
        ("held[1:] if offloaded else held", "held"): "What is offloaded is not on the GPU.",
        ("stage <=", "stage =="): "A stage shards what the stages before it shard, too.",
    },
)
def bytes_on_gpu(config, ranks):
    """Bytes of state for each parameter on a rank's GPU, by a DeepSpeed configuration with AdamW.

    The optimizer has two averages and a float32 copy, of the part that its rank updates.
    """
    zero, number = config["zero_optimization"], 2 if config.get("bf16", {}).get("enabled") else 4
    sizes = enumerate([12, number, number], start=1)  # the stage that divides it, and the bytes
    held = [size / ranks if stage <= zero["stage"] else size for stage, size in sizes]
    offloaded = zero.get("offload_optimizer", {}).get("device") == "cpu"
    return sum(held[1:] if offloaded else held)


@FunctionTask.from_solution(
    hint="train_batch_size = micro-batch x accumulation steps x ranks. What is left out?",
    stronger="The micro-batch, if it is there. Else train_batch_size over steps, and over ranks.",
    cases=(
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, 8),
        ({"train_batch_size": 96, "gradient_accumulation_steps": 3}, 8),
        ({"train_batch_size": 64}, 4),
    ),
    mistakes={
        (" // ranks", ""): "train_batch_size is that of all ranks together.",
        (" // steps", ""): "A rank computes one accumulation step's samples at once.",
        ('if "train_micro', 'if "no_micro'): "Where the micro-batch is named, that is it.",
    },
)
def samples_at_once(config, ranks):
    """The micro-batch of a rank, by a DeepSpeed configuration that may leave numbers out."""
    if "train_micro_batch_size_per_gpu" in config:
        return config["train_micro_batch_size_per_gpu"]
    steps = config.get("gradient_accumulation_steps", 1)
    return config["train_batch_size"] // steps // ranks


def read_in_legs(is_mine, *legs, batch=12):
    """List what made-up ranks read in each step of legs: each takes shares of workers in turn."""
    batches = []
    for ranks, workers, steps in legs:
        position, share = len(batches) * batch, batch // ranks
        for step in range(steps):
            numbers, worker = range((step + workers) * batch), step % workers
            parts = (
                [n for n in numbers if is_mine(n, batch, rank, ranks, worker, workers)]
                for rank in range(ranks)
            )
            taken = slice(step // workers * share, (step // workers + 1) * share)
            batches.append(sorted(position + n for own in parts for n in own[taken]))
    return batches


class StreamTask(FunctionTask):
    """Judged by all that the workers of made-up ranks read together."""

    def _results(self, function):
        return read_in_legs(function, *self.cases)

    def attempt(self, given):
        self._call(given or (lambda *_: None), (0, 12, 0, 2, 0, 2))
        seen, right = self._results(given), self._results(self.solved_by)
        if seen == right:
            return f"each sample is read once, and the {len(right)} batches are the right ones."
        have, want = Counter(sum(seen, [])), Counter(sum(right, []))
        same = sum(a == b for a, b in zip(seen, right, strict=True))
        said = f"{(want - have).total()} never, {(have - want).total()} again, {same} right batches"
        legs = f"in legs of (ranks, workers, steps) {self.cases}"
        expected = f"each of {len(want)} samples once, in the batches of one process, {legs}"
        raise Wrong(expected, said, self._known_mistake(seen))


@StreamTask.from_solution(
    hint="In which batch is the sample? Which worker makes that rank's share of it?",
    stronger="The batch is number // batch, and its worker that % workers. Ranks have every so "
    "many-th sample.",
    cases=((4, 2, 3), (2, 3, 4), (3, 1, 2), (1, 4, 3)),
    mistakes={
        (" and number // batch % workers == worker", ""): "All workers of a rank read the same.",
        ("number % ranks == rank and ", ""): "All ranks read the same.",
        (
            "number % ranks == rank and number // batch % workers == worker",
            "number % (ranks * workers) == rank * workers + worker",
        ): "Each sample has one worker, but is in another batch: no position says what was read.",
        ("number % ranks", "number // batch % ranks", "// batch % w", "// batch // ranks % w"): "A "
        "step needs a share of one batch from each rank. That gives it whole batches.",
    },
)
def is_mine(number, batch, rank, ranks, worker, workers):
    """Whether this worker of this rank reads the sample with this number in a stream.

    number: from where training resumed. batch: of all ranks. A rank's loader takes batch // ranks
    samples of a worker, then as many of the next.
    """
    return number % ranks == rank and number // batch % workers == worker


@FunctionTask.from_solution(
    hint="Young's interval needs two times in the same unit: what a save takes, and the time "
    "between failures of the whole job. How many bytes has the state?",
    stronger="A save takes 12 * parameters / bytes_per_second; the job fails every "
    "days_between_failures * 86400 / hosts seconds; take the root of 2 times both, / step_seconds.",
    within=0.01,  # so that whole steps pass
    unit="steps",
    cases=((7e9, 2e9, 16, 400, 5.0), (70e9, 1e11, 128, 400, 10.0), (405e9, 2e12, 2000, 250, 3.0)),
    mistakes={
        (" / hosts", ""): "With many hosts one fails so many times as often, and stops all.",
        ("12 * parameters", "16 * parameters"): "That saves 16 bytes for each parameter. Gradients "
        "need not be saved: after a step they are used up.",
        1 / math.sqrt(2): "The root of 2 is missing: a failure loses *half* an interval.",
        (lambda *given: steps_between_saves(*given) * given[-1]): "Those are seconds, not steps.",
    },
)
def steps_between_saves(parameters, bytes_per_second, hosts, days_between_failures, step_seconds):
    """How many steps to train from one save to the next, by Young's first-order optimum (1974).

    days_between_failures: of one host, on average. The state is 12 bytes for each parameter.
    """
    save_seconds = 12 * parameters / bytes_per_second
    between_failures = days_between_failures * 24 * 3600 / hosts  # any host stops all of them
    return math.sqrt(2 * save_seconds * between_failures) / step_seconds


@FunctionTask.from_solution(
    hint="Write down the shapes of up @ down, and of a third of c_attn. Which way round is each?",
    stronger="(up @ down).T of the queries, zeros like it, that of the values: torch.cat(..., 1).",
    cases=((torch.cat([*DRAWN], 1), *((matrix[:1], matrix[:, 1:2]) for matrix in DRAWN[:2])),),
    mistakes={
        (".T", ""): "GPT-2 keeps a matrix with inputs down, outputs across. torch.nn.Linear has it "
        "the other way round, and as these are square, nothing complains.",
        ("c_attn + ", ""): "Those are the updates alone: the base is added.",
        ("torch.zeros_like(q), v", "v, torch.zeros_like(q)"): "The middle is the keys', which have "
        "no adapter here.",
    },
)
def merge_adapters(c_attn, query, value):
    """GPT-2's matrix of queries, keys and values with LoRA's updates added, to be given away.

    c_attn: (width, 3 * width), inputs down, outputs across. query, value: down and up, the weights
    of two torch.nn.Linear, (rank, width) and (width, rank): x goes through down, then through up.
    """
    q, v = ((up @ down).T for down, up in (query, value))
    return c_attn + torch.cat([q, torch.zeros_like(q), v], 1)


@FunctionTask.from_solution(
    hint="Draw 8 ranks in rows of 4: 0 to 3, below 4 to 7. How far apart are a column's ranks?",
    stronger="rank % shard is the rank's place in its row, so the row begins at rank - rank % "
    "shard. The column begins at that place, and goes on in steps of shard.",
    cases=((0, 4, 2), (5, 8, 4), (6, 8, 2), (9, 12, 3)),
    mistakes={
        (lambda rank, ranks, shard: row_and_column(rank, ranks, shard)[::-1]): "Row and column "
        "have changed places. The row comes first: the ranks that hold one copy together.",
        (lambda rank, ranks, shard: row_and_column(rank, ranks, ranks // shard)[::-1]): "That mesh "
        "is filled column by column, so all gathering crosses the link. Fill it row by row.",
        (lambda rank, ranks, shard: row_and_column(rank, ranks, ranks // shard)): "Those are shard "
        "rows. shard is how many ranks a row has.",
    },
)
def row_and_column(rank, ranks, shard):
    """The ranks of a rank's row, which hold one copy together, and of its column: the same part.

    Rows are filled with ranks one after another, so that a row of a host's length is a host.
    """
    first, place = rank - rank % shard, rank % shard
    return list(range(first, first + shard)), list(range(place, ranks, shard))


@FunctionTask.from_solution(
    hint="How many experts has a rank? Which part of a line of counts belongs to rank 0's experts?",
    stronger="each = len(counts[0]) // len(counts). The rows for rank k are those of the experts "
    "from k * each on: sum(line[k * each : (k + 1) * each]).",
    cases=(
        ([[1, 2, 3, 4], [5, 6, 7, 8]],),
        ([[4, 0, 1, 2, 0, 9], [3, 3, 3, 0, 5, 1], [1, 0, 0, 7, 2, 8]],),
        ([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 1, 2]],),
    ),
    mistakes={
        ("k * each : (k + 1) * each", "k::ranks"): "That deals the experts out like cards. A "
        "rank's experts are neighbours, so that the rows for it, sorted by expert, are too.",
        (
            lambda counts: [list(column) for column in zip(*rows_between(counts), strict=True)]
        ): "Those are the right numbers with sender and receiver swapped.",
        ("sum(line", "0 if line is counts[k] else sum(line"): "Rows for a rank's own experts go "
        "through the all-to-all as well: it wants a number for each rank, this one among them.",
    },
)
def rows_between(counts):
    """How many rows each rank sends to each: [from][to]."""
    ranks = len(counts)
    each = len(counts[0]) // ranks
    return [[sum(line[k * each : (k + 1) * each]) for k in range(ranks)] for line in counts]


EXPERTS_OVER_RANKS = ScriptTask(
    "experts_over_ranks",
    task="The missing half: bring each result back to the rank of its token, and give\n"
    "the experts' gradients the scale of all others, after loss.backward().\n\n"
    "dispatch has left two lists in experts: `sent`, how many rows this rank sent to each\n"
    "rank, and `received`, how many it got from each.\n",
    hint="What came in must go out, and the other way round. And which loss does a rank's backward "
    "pass begin with: that of its share, or that of the batch?",
    stronger="combine is the all_to_all of dispatch with the two lists swapped. An expert's "
    "gradient is the sum over all ranks' mean losses: divide it by the number of ranks.",
    solution="ep",
    takes_out=(
        "return all_to_all(results, experts.sent, experts.received, dist.group.WORLD)",
        "for parameter in mine.values():",
        "parameter.grad /= world",
    ),
    ranks=2,
    flags={"model": "moe"},
    errors={
        "Split sizes doesn't match": "What came in goes out again: the two lists change places.",
        "expected to be specified": "all_to_all takes the tensor, the rows that come from each "
        "rank, the rows that go to each, and the group.",
    },
)


GROUPS = {"a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3)}  # of a mesh of 2 x 2
CALLS = "ac ad bc bd", "ac ad bc d", "acc ad bc bd", "cac ad bc bd", "ca ad bc db"


@FunctionTask.from_solution(
    hint="Which collective can begin first? Who can go on then?",
    stronger="While a group is next on each of its ranks, take it off their calls; the rest waits.",
    cases=tuple((calls.split(), GROUPS) for calls in CALLS),
    mistakes={
        ("(left) if its", "(calls) if len(its) > min(map(len, calls))"): "Numbers of calls do not "
        "tell: a rank waits for its groups, one after the other.",
        ("while", "if"): "When one is through, its ranks go on: look again until none can begin.",
        ("left[r].startswith(g)", "g in left[r]"): "A call begins after those ahead of it.",
    },
)
def who_waits(calls, groups):
    """The ranks that wait for ever. calls[rank]: its collectives in order, a group's name each."""
    left = list(calls)
    while ready := [g for g, its in groups.items() if all(left[r].startswith(g) for r in its)]:
        for rank in groups[ready[0]]:
            left[rank] = left[rank][1:]
    return [rank for rank, its in enumerate(left) if its]


@FunctionTask.from_solution(
    hint="How many operations and bytes has a parameter? Through how many cards does a ring go?",
    stronger="6 operations a token, 2 + 2 + gradient_bytes bytes, at cards * bytes_per_second.",
    unit="tokens",
    cases=((795e12, 8, 50e9, 2), (795e12, 8, 50e9, 4), (271e12, 8, 25e9, 4)),
    mistakes={
        ("cards * ", ""): "A ring leaves each host once, through all of its cards.",
        ("2 + 2", "2"): "Parameters are gathered twice: for the forward and the backward pass.",
        ("/ 6", "/ 2"): "That is the forward pass alone. The backward pass computes twice as much.",
    },
)
def tokens_to_hide(flops_per_second, cards, bytes_per_second, gradient_bytes):
    """The tokens on a rank from which FSDP between hosts hides what it sends in a step."""
    sending = (2 + 2 + gradient_bytes) / (cards * bytes_per_second)
    return sending * flops_per_second / 6


@FunctionTask.from_solution(
    hint="A row's number costs 18 operations for each of an inner width. How often does it travel?",
    stronger="There and back in two passes; of all that (ranks - 1) / ranks leaves the rank.",
    cases=((8, 795e12, 50e9, 2, 2), (8, 795e12, 50e9, 1, 2), (64, 795e12, 450e9, 1, 2)),
    mistakes={
        ("2 * (there", "(there"): "Rows travel in the backward pass as well.",
        (" * (ranks - 1) / ranks", ""): "A rank keeps the rows for its own experts.",
        ("/ 18", "/ 6"): "That is the forward pass alone: the backward one computes twice that.",
    },
)
def narrowest_expert(ranks, flops_per_second, bytes_per_second, there, back):
    """The inner width from which an expert of three matrices computes longer than rows travel."""
    sent = 2 * (there + back) * (ranks - 1) / ranks
    return sent / bytes_per_second * flops_per_second / 18
