"""Exercises of lessons 03 to 05 that are a function in a cell."""

import math
from statistics import fmean

from bootcamp.classroom.function_task import FunctionTask


def largest_batch(devices, memory, state, activations, outputs):
    """Samples of the largest global batch with which device 0 of DataParallel is not too full.

    memory: of each device. state: parameters, gradients and optimizer state. activations, outputs:
    of one sample; the outputs count twice on device 0. All in MB.
    """
    per_sample = activations / devices + 2 * outputs  # device 0 has the outputs of all samples
    return int((memory - state) // per_sample)


LARGEST_BATCH = FunctionTask(
    hint="Device 0 has three parts: one that does not depend on the batch, one of which it has an "
    "equal share, one that it has for the whole batch.",
    stronger="A sample costs device 0 activations / devices + 2 * outputs. The state is there "
    "before any sample. Round down: a part of a sample does not fit.",
    solved_by=largest_batch,
    cases=((4, 16_000, 4_000, 300, 50), (2, 80_000, 20_000, 900, 206), (8, 24_000, 2_000, 120, 10)),
    unit="samples",
    mistakes={
        "That divides the outputs too, as DDP does. In DataParallel device 0 gathers the outputs "
        "of the whole batch.": (
            "activations / devices + 2 * outputs",
            "(activations + 2 * outputs) / devices",
        ),
        "That leaves all activations on device 0. Each device runs the forward of its share, and "
        "keeps the activations of that.": {"devices": 1},
        "That forgets the state: parameters, gradients and optimizer state are there before any "
        "sample.": {"state": 0},
        "That counts the outputs once. The loss keeps their log-softmax, and their gradient is as "
        "large.": ("2 * outputs", "outputs"),
        "That is too many by a factor of devices: largest_batch asks for the global batch, and "
        "device 0 has the outputs of all of it.": ("return ", "return devices * "),
        "That is right but for the last part of a sample, which does not fit: round down.": (
            "int((memory - state) // per_sample)",
            "(memory - state) / per_sample",
        ),
    },
)


def samples_of_rank(order, rank, world):
    """The samples that a rank trains on in an epoch, as DistributedSampler shares them out.

    order: the shuffled ids of all samples, the same list on every rank.
    """
    too_few = -len(order) % world  # as many are missing for equal shares
    padded = order + order[:too_few]
    return padded[rank::world]


SAMPLES_OF_RANK = FunctionTask(
    hint="First make the list long enough: how many samples are missing until its length divides "
    "by world? Then a slice with a step takes every world-th one.",
    stronger="-len(order) % world samples are missing. Put order[:missing] behind the order, and "
    "take [rank::world] of that.",
    solved_by=samples_of_rank,
    cases=(
        ([5, 2, 7, 0, 3, 1, 6, 4], 0, 2),
        ([5, 2, 7, 0, 3, 1, 6, 4], 3, 4),
        ([4, 0, 3, 1, 2], 0, 2),
        ([4, 0, 3, 1, 2], 1, 2),
        ([4, 0, 3, 1, 2], 3, 4),
    ),
    mistakes={
        "Those are blocks of neighbours. DistributedSampler deals the order out one by one, like "
        "cards.": (
            "[rank::world]",
            "[rank * (share := len(padded) // world) : (rank + 1) * share]",
        ),
        "That is right where the samples divide. Where they don't, some ranks get one less: they "
        "would do fewer steps, and the "
        "others would wait for them for ever.": ("padded[rank", "order[rank"),
        "That leaves out the samples that do not divide, as drop_last=True does. Here some are to "
        "be repeated instead.": ("order + order[:too_few]", "order[: len(order) // world * world]"),
        "Where the samples divide already, that repeats as many as there are ranks. "
        "-len(order) % world is 0 there.": ("-len(order) % world", "world - len(order) % world"),
        "Those are blocks of neighbours, of different lengths. Repeat samples until they divide, "
        "and deal them out one by one.": (
            "padded[rank::world]",
            "order[rank * (share := -(-len(order) // world)) : (rank + 1) * share]",
        ),
        "That repeats the last sample. The ones at the beginning of the order are repeated.": (
            "order[:too_few]",
            "order[-1:] * too_few",
        ),
        "That shares out sorted ids: the shuffled order is lost.": (
            "padded = order +",
            "order = sorted(order)\n    padded = order +",
        ),
        "Those are another rank's samples: ranks count from 0, as places in a list do.": (
            "[rank::",
            "[(rank - 1) % world ::",
        ),
    },
)


def ring_seconds(data_bytes, ranks, alpha_seconds, bytes_per_second):
    """Time of a ring all-reduce: each of its steps has a start-up cost and carries one piece.

    alpha_seconds: start-up cost of one step. bytes_per_second: what a rank can send.
    """
    steps = 2 * (ranks - 1)
    piece_bytes = data_bytes / ranks
    return steps * (alpha_seconds + piece_bytes / bytes_per_second)


RING_SECONDS = FunctionTask(
    hint="How many steps does a ring take, one after another? And how many bytes does a rank send "
    "in one of them?",
    stronger="There are 2 * (ranks - 1) steps. In each a rank sends one piece, data_bytes / ranks, "
    "which takes alpha_seconds + piece / bytes_per_second.",
    solved_by=ring_seconds,
    cases=(
        (25 * 2**20, 8, 20e-6, 10e9),
        (4, 64, 20e-6, 10e9),
        (400e6, 4, 50e-6, 1.25e8),
    ),
    unit="s",
    mistakes={
        "That is half of the ring. After N-1 steps each rank has one complete piece; N-1 more pass "
        "the pieces on to all.": 1 / 2,
        "The bytes are right. But the start-up cost is paid in every step of the ring, and there "
        "are 2 * (ranks - 1), one after another.": (
            "steps * (alpha_seconds + piece_bytes",
            "alpha_seconds + steps * (piece_bytes",
        ),
        "That sends all data in every step. A step carries one piece, 1/N of the data.": (
            "data_bytes / ranks",
            "data_bytes",
        ),
        "That is a step too many in both rounds: a piece is at home on one rank already, so N-1 "
        "steps take it everywhere.": ("(ranks - 1)", "ranks"),
        "That turns bytes into bits. The rate is given in bytes per second.": (
            "data_bytes / ranks",
            "8 * data_bytes / ranks",
        ),
        "That is the time for the bytes alone. For small data the start-up cost decides: "
        "alpha_seconds in each step.": ("alpha_seconds + piece", "piece"),
    },
)


def in_one_process(rate, batch, ranks, passes):
    """(samples of a step, learning rate) with which one process makes a Horovod script's steps.

    The script: SGD(lr=rate * hvd.size()), `batch` samples in each backward of each rank, the loss
    their mean, backward_passes_per_step=passes, and no division by it.
    """
    samples = batch * passes * ranks
    averaged_over_ranks, summed_over_passes = 1, passes
    return samples, rate * ranks * averaged_over_ranks * summed_over_passes


IN_ONE_PROCESS = FunctionTask(
    hint="Count the samples of all ranks and passes. Then ask of both, ranks and passes: does "
    "Horovod average over them, or add up? And who changes the rate?",
    stronger="Samples: batch * ranks * passes. Over ranks it averages, so only the script's own "
    "factor hvd.size() counts; over passes it adds up, which is a factor of passes.",
    solved_by=in_one_process,
    cases=((0.1, 32, 4, 1), (0.05, 8, 2, 4), (0.01, 16, 8, 2)),
    unit="(samples, rate)",
    mistakes={
        "The samples are right. But Horovod adds up the gradients of the passes, so they are as "
        "many times too large, and SGD's step with them.": (" * summed_over_passes", ""),
        "The samples are right. But the script itself multiplies its rate by hvd.size(), the "
        "number of ranks.": ("rate * ranks *", "rate *"),
        "The samples are right. The rate is not: the script multiplies it by hvd.size(), and "
        "Horovod adds up the gradients of the passes.": (
            "rate * ranks * averaged_over_ranks * summed_over_passes",
            "rate",
        ),
        "That has the ranks in the rate twice. Horovod averages over the ranks; only the script's "
        "own factor hvd.size() is left.": ("= 1, passes", "= ranks, passes"),
        "The rate is right. But every pass takes other samples: a step has those of all passes.": (
            "batch * passes * ranks",
            "batch * ranks",
        ),
        "The rate is right. But `batch` is one rank's: a step has the samples of all ranks.": (
            "batch * passes * ranks",
            "batch * passes",
        ),
        "Both numbers are right, in the "
        "other order: samples first, then the rate.": lambda *given: in_one_process(*given)[::-1],
    },
)


def scaled_rate(step, base_rate, factor, warm_up):
    """The learning rate of this step: a ramp from the base rate to factor times it."""
    if step >= warm_up:
        return factor * base_rate
    return base_rate * (1 + (factor - 1) * step / warm_up)


SCALED_RATE = FunctionTask(
    hint="Before step warm_up, which share of the way from base_rate to factor * base_rate lies "
    "behind?",
    stronger="From step warm_up on: factor * base_rate. Before: base_rate plus "
    "step / warm_up times the difference.",
    solved_by=scaled_rate,
    cases=(
        (0, 0.1, 8, 100),
        (50, 0.1, 8, 100),
        (100, 0.1, 8, 100),
        (900, 0.05, 4, 20),
        (0, 0.1, 8, 0),
    ),
    mistakes={
        "That begins near 0. Goyal et al. begin with the base rate: it is right for the base "
        "batch, so it is not too large for a larger one.": (
            "(1 + (factor - 1) * step / warm_up)",
            "factor * step / warm_up",
        ),
        "That never stops rising: after the warm-up the rate stays at factor times the base "
        "rate.": ("step >= warm_up", "not warm_up"),
        "That warms up to the base rate, not to factor times it.": lambda step, rate, k, warm_up: (
            rate
        ),
    },
)


def ranks_for_speed_up(compute_seconds, overhead_seconds, times):
    """The fewest ranks that finish a step at least `times` times as fast as one; 0 if none do."""
    if times <= 1:
        return 1
    left = compute_seconds / times - overhead_seconds  # for computing, of the step that is wanted
    return math.ceil(compute_seconds / left) if left > 0 else 0


RANKS_FOR_SPEED_UP = FunctionTask(
    hint="How long may the step take at most? How much of that is left for computing?",
    stronger="The step may take compute_seconds / times, of which overhead_seconds are gone. "
    "Divide compute_seconds by what is left, and round up. Nothing left: 0.",
    solved_by=ranks_for_speed_up,
    cases=((1.0, 0.05, 2), (1.0, 0.05, 8), (1.0, 0.05, 20), (0.6, 0.1, 3), (0.2, 0.3, 1)),
    unit="ranks",
    mistakes={
        "That forgets the overhead: with it, more ranks are needed.": lambda compute, over, times: (
            math.ceil(times)
        ),
        "That divides the overhead among the ranks too. Every rank waits for it, all at "
        "once.": lambda compute, over, times: math.ceil((compute + over) * times / compute),
        "That rounds down. With one rank less the step takes longer than it may.": (
            "math.ceil(",
            "int(",
        ),
    },
)


def evaluate_over_ranks(ranks):
    """The mean loss of the held-out samples, each of which counts once.

    ranks: for each rank its batches, and for each batch {id of a sample: its loss}. A sampler may
    have dealt a sample to several ranks.
    """
    once = {
        sample: loss for batches in ranks for batch in batches for sample, loss in batch.items()
    }
    return sum(once.values()) / len(once)


def _dealt(ranks):
    return [[loss for batch in batches for loss in batch.values()] for batches in ranks]


EVALUATE = FunctionTask(
    hint="What do you divide by in the end, and how often? And which samples are there twice?",
    stronger="Put all batches into one dictionary, so that a sample is in it once. Add up its "
    "values and divide once, by how many there are.",
    solved_by=evaluate_over_ranks,
    cases=(
        ([[{0: 2.0, 2: 4.0}, {4: 9.0}], [{1: 3.0, 3: 5.0}, {0: 2.0}]],),
        ([[{0: 1.0, 3: 2.0}, {6: 6.0}], [{1: 1.5, 4: 2.5}], [{2: 3.5, 5: 0.5}, {0: 1.0, 1: 1.5}]],),
        ([[{0: 4.0}], [{1: 2.0}]],),
    ),
    mistakes={
        "That is a mean of the batches' means: a short batch weighs as much as a full one. Keep "
        "sums and counts apart, and divide once.": lambda ranks: fmean(
            fmean(fmean(batch.values()) for batch in batches) for batches in ranks
        ),
        "That is a mean of the ranks' means: ranks with few samples weigh as much as the others. "
        "All-reduce the sum and the count, then divide.": lambda ranks: fmean(
            fmean(losses) for losses in _dealt(ranks)
        ),
        "Sums and counts are right, but some samples are in them twice: the sampler has dealt them "
        "out again so that all ranks have equally many.": lambda ranks: fmean(
            loss for losses in _dealt(ranks) for loss in losses
        ),
    },
)


def clip_over_ranks(gradients, most):
    """The gradient with which every rank's optimizer takes its step, of a norm of at most `most`.

    gradients: each rank's own, a list of numbers, as the backward of its share gives it.
    """
    mean = [fmean(numbers) for numbers in zip(*gradients, strict=True)]
    factor = min(1.0, most / math.hypot(*mean))
    return [factor * number for number in mean]


def _clipped(gradient, most):
    return clip_over_ranks([gradient], most)


def _mean(gradients):
    return [fmean(numbers) for numbers in zip(*gradients, strict=True)]


CLIP = FunctionTask(
    hint="Which gradient would one process clip? And what does clipping leave alone?",
    stronger="First the mean over the ranks, number by number. Then its norm: if that is above "
    "most, multiply every number by most / norm; else leave them.",
    solved_by=clip_over_ranks,
    cases=(
        ([[6.0, 0.0], [0.0, 8.0]], 1.0),
        ([[30.0, 40.0], [-29.4, -39.2]], 1.0),
        ([[3.0, 4.0], [3.0, 4.0]], 20.0),
        ([[0.3, 0.4], [0.9, 1.2], [0.0, 0.2]], 0.5),
    ),
    within=1e-6,
    mistakes={
        "That clips each rank's own gradient and averages what is left: a rank with a long one "
        "counts less than the others. DDP averages within backward(); clip behind it.": (
            lambda g, m: _mean([_clipped(own, m) for own in g])
        ),
        "That clips the sum. One process has the mean over the batch, and so have DDP's ranks.": (
            lambda g, m: _clipped([sum(numbers) for numbers in zip(*g, strict=True)], m)
        ),
        "That makes short gradients longer: below `most` they stay as they are.": lambda g, m: [
            number * m / math.hypot(*_mean(g)) for number in _mean(g)
        ],
        "That cuts each number by itself, which changes the direction (clip_grad_value_). "
        "clip_grad_norm_ multiplies all by one factor.": lambda g, m: [
            max(-m, min(m, number)) for number in _mean(g)
        ],
    },
)


def late_rank(ranks):
    """(rank that the others wait for, part in which it loses the time, milliseconds to be gained).

    ranks: a dictionary for each, with the milliseconds that it "computes", "waits" in collectives
    and does "neither" in a step. Gained: by a late rank that is as fast as the next slowest.
    """
    own = [rank["computes"] + rank["neither"] for rank in ranks]
    in_order = sorted(range(len(ranks)), key=own.__getitem__)
    late, next_slowest = in_order[-1], in_order[-2]

    def excess(part):
        return ranks[late][part] - ranks[next_slowest][part]

    part = "computes" if excess("computes") > excess("neither") else "neither"
    return late, part, own[late] - own[next_slowest]


def _by(key, ranks):
    return max(range(len(ranks)), key=lambda rank: key(ranks[rank]))


def _own(rank):
    return rank["computes"] + rank["neither"]


def _with(ranks, late=None, part=None, gained=None):
    """The right answer with a part of it replaced."""
    right = late_rank(ranks)
    return tuple(b if a is None else a for a, b in zip((late, part, gained), right, strict=True))


def _waits_most(ranks):
    late = _by(lambda rank: rank["waits"], ranks)
    return late, "waits", ranks[late]["waits"]


LATE_RANK = FunctionTask(
    hint="Who keeps the others waiting does not wait. What is left of its step when you take the "
    "waiting away, and how much of that is left on the others?",
    stronger="A rank's own time is computes + neither. The late rank has the largest, and the gain "
    "is the distance to the second largest. The part at fault is the one that exceeds that second "
    "rank's by more.",
    solved_by=late_rank,
    cases=(
        (
            [
                {"computes": 110.0, "waits": 80.0, "neither": 10.0},
                {"computes": 108.0, "waits": 82.0, "neither": 10.0},
                {"computes": 105.0, "waits": 6.0, "neither": 89.0},
                {"computes": 112.0, "waits": 77.0, "neither": 11.0},
            ],
        ),
        (
            [
                {"computes": 190.0, "waits": 5.0, "neither": 5.0},
                {"computes": 120.0, "waits": 75.0, "neither": 5.0},
                {"computes": 149.0, "waits": 45.0, "neither": 6.0},
            ],
        ),
        (
            [
                {"computes": 130.0, "waits": 70.0, "neither": 100.0},
                {"computes": 190.0, "waits": 8.0, "neither": 102.0},
            ],
        ),
    ),
    unit="(rank, part, ms)",
    mistakes={
        "That rank waits longest, so it is early. An all-reduce lasts until the last rank has "
        "come, and every rank but that one sees a slow network.": _waits_most,
        "The rank is the one that computes longest. Reading data, the garbage collector and other "
        'programs make a rank late too: add "neither".': lambda ranks: _with(
            ranks, late=_by(lambda rank: rank["computes"], ranks)
        ),
        "Rank and part are right. But the gain is not the longest waiting: when the late rank is "
        "cured, all still wait for the next slowest.": lambda ranks: _with(
            ranks,
            gained=max(rank["waits"] for rank in ranks) - min(rank["waits"] for rank in ranks),
        ),
        "Rank and part are right. The gain is only what its own time exceeds that of the next "
        "slowest rank by.": lambda ranks: _with(ranks, gained=max(map(_own, ranks))),
        "Rank and gain are right. The longer part need not be the one at fault: compare it with "
        "the same part of the others.": lambda ranks: _with(
            ranks, part=max(("computes", "neither"), key=ranks[late_rank(ranks)[0]].get)
        ),
        "Part and gain are right. Ranks count from 0, as places in a list do.": lambda ranks: _with(
            ranks, late=late_rank(ranks)[0] + 1
        ),
    },
)

TASKS = [
    LARGEST_BATCH,
    SAMPLES_OF_RANK,
    RING_SECONDS,
    IN_ONE_PROCESS,
    SCALED_RATE,
    RANKS_FOR_SPEED_UP,
    EVALUATE,
    CLIP,
    LATE_RANK,
]
