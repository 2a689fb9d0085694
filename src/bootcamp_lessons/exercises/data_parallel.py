"""Function exercises of lessons 03 to 05: batches, rings, learning rates, clipping, slow ranks."""

import math
from statistics import fmean

from bootcamp.classroom.tasks import FunctionTask


@FunctionTask.from_solution(
    hint="Device 0 has three parts: one that does not depend on the batch, one of which it has an "
    "equal share, one that it has for the whole batch.",
    stronger="A sample costs device 0 activations / devices + 2 * outputs. The state is there "
    "before any sample. Round down: a part of a sample does not fit.",
    cases=((4, 16_000, 4_000, 300, 50), (2, 80_000, 20_000, 900, 206), (8, 23_860, 2_000, 120, 10)),
    unit="samples",
    mistakes={
        ("+ 2 * outputs", "+ 2 * outputs / devices"): "That divides the outputs too, as DDP does. "
        "In DataParallel device 0 gathers the outputs of the whole batch.",
        ("activations / devices", "activations"): "That leaves all activations on device 0. Each "
        "device runs the forward of its share, and keeps the activations of that.",
        ("memory - state", "memory"): "That forgets the state, which is there before any sample.",
        ("2 * outputs", "outputs"): "The loss keeps their log-softmax; gradients are as large.",
        ("return ", "return devices * "): "That is too many by a factor of devices: largest_batch "
        "asks for the global batch, and device 0 has the outputs of all of it.",
        ("int((memory - state) //", "((memory - state) /"): "Round the part of a sample down.",
    },
)
def largest_batch(devices, memory, state, activations, outputs):
    """Return the most samples in a global batch that still fit on DataParallel's device 0.

    memory: size of each device. state: parameters, gradients and optimizer state. activations,
    outputs: size for one sample; the outputs count twice on device 0. All in MB.
    """
    on_device_0 = activations / devices + 2 * outputs  # MB of one sample: device 0 has all outputs
    return int((memory - state) // on_device_0)


@FunctionTask.from_solution(
    hint="First make the list long enough: how many samples are missing until its length divides "
    "by world? Then a slice with a step takes every world-th one.",
    stronger="missing = -len(order) % world; take [rank::world] of order + order[:missing].",
    cases=(
        ([5, 2, 7, 0, 3, 1, 6, 4], 0, 2),
        ([5, 2, 7, 0, 3, 1, 6, 4], 3, 4),
        ([4, 0, 3, 1, 2], 0, 2),
        ([4, 0, 3, 1, 2], 1, 2),
        ([4, 0, 3, 1, 2], 3, 4),
    ),
    mistakes={
        ("[rank::world]", "[rank * len(padded) // world :][: len(padded) // world]"): "Those are "
        "blocks of neighbours. DistributedSampler deals the order out one by one, like cards.",
        ("padded[rank", "order[rank"): "That is right where the samples divide. Where they don't, "
        "some ranks get one less: they would do fewer steps, and the others wait for ever.",
        ("order + order[:missing]", "order[: -(len(order) % world) or None]"): "That leaves out "
        "the samples that do not divide, as drop_last=True does. Here some are to be repeated.",
        ("-len(order) % world", "world - len(order) % world"): "Where the samples divide already, "
        "that repeats as many as there are ranks. -len(order) % world is 0 there.",
        (
            "padded[rank::world]",
            "order[rank * (len(order) // world) :][: len(order) // world]",
        ): "Those are blocks, and lack some. Repeat samples until they divide; deal one by one.",
        (lambda order, rank, n: order[rank * len(order) // n : (rank + 1) * len(order) // n]): "Bl"
        "ocks, some of them longer. Repeat samples until they divide, and deal them one by one.",
    },
)
def samples_of_rank(order, rank, world):
    """Return the samples that a rank trains on in an epoch, as DistributedSampler deals them.

    order: the shuffled ids of all samples, the same list on every rank.
    """
    missing = -len(order) % world  # samples to repeat, for equal shares
    padded = order + order[:missing]
    return padded[rank::world]


@FunctionTask.from_solution(
    hint="How many steps does a ring take, one by one? How many bytes does a rank send in each?",
    stronger="There are 2 * (ranks - 1) steps. In each a rank sends one piece, data_bytes / ranks, "
    "which takes alpha_seconds + piece / bytes_per_second.",
    cases=((25 * 2**20, 8, 20e-6, 10e9), (4, 64, 20e-6, 10e9), (400e6, 4, 50e-6, 1.25e8)),
    unit="s",
    mistakes={
        1 / 2: "That is half of the ring: N-1 more steps pass the complete pieces on to all.",
        ("steps * (alpha_seconds +", "alpha_seconds + steps * ("): "The bytes are right. But the "
        "start-up cost is paid in every step of the ring, and there are 2 * (ranks - 1).",
        ("/ ranks", ""): "That sends all data in every step. A step carries one piece, 1/N of it.",
        ("(ranks - 1)", "ranks"): "That is a step too many in both rounds: a piece is at home on "
        "one rank already, so N-1 steps take it everywhere.",
        ("piece /", "8 * piece /"): "That turns bytes into bits. The rate is in bytes a second.",
        ("alpha_seconds + piece", "piece"): "That is the time for the bytes alone. For small data "
        "the start-up cost decides: alpha_seconds in each step.",
    },
)
def ring_seconds(data_bytes, ranks, alpha_seconds, bytes_per_second):
    """Time of a ring all-reduce: each of its steps has a start-up cost and carries one piece.

    alpha_seconds: start-up cost of one step. bytes_per_second: what a rank can send.
    """
    steps = 2 * (ranks - 1)
    piece = data_bytes / ranks
    return steps * (alpha_seconds + piece / bytes_per_second)


@FunctionTask.from_solution(
    hint="Count the samples of all ranks and passes. Then ask of both, ranks and passes: does "
    "Horovod average over them, or add up? And who changes the rate?",
    stronger="Samples: batch * ranks * passes. Over ranks it averages, so only the script's own "
    "factor hvd.size() counts; over passes it adds up, which is a factor of passes.",
    cases=((0.1, 32, 4, 1), (0.05, 8, 2, 4), (0.01, 16, 8, 2)),
    unit="(samples, rate)",
    mistakes={
        (" * summed", ""): "The samples are right. But Horovod adds up the gradients of the "
        "passes, so they are as many times too large, and SGD's step with them.",
        ("rate * ranks *", "rate *"): "The script itself multiplies its rate by hvd.size().",
        (" * ranks * averaged * summed", ""): "The samples are right. The rate is not: the script "
        "multiplies it by hvd.size(), and Horovod adds up the gradients of the passes.",
        ("= 1, passes", "= ranks, passes"): "That has the ranks in the rate twice. Horovod "
        "averages over the ranks; only the script's own factor hvd.size() is left.",
        ("batch * passes", "batch"): "The rate is right. But a step has the samples of all passes.",
        ("passes * ranks", "passes"): "The rate is right. But a step has the samples of all ranks.",
    },
)
def in_one_process(rate, batch, ranks, passes):
    """Return (samples in a step, learning rate) of one process that makes the same steps.

    The Horovod script has SGD(lr=rate * hvd.size()) and backward_passes_per_step=passes. Each
    backward takes the mean loss of `batch` samples, not divided by `passes`.
    """
    samples = batch * passes * ranks
    averaged, summed = 1, passes  # over the ranks, over the passes
    return samples, rate * ranks * averaged * summed


@FunctionTask.from_solution(
    hint="Before warm_up, which share of the way to factor * base_rate lies behind?",
    stronger="From warm_up on factor * base_rate; before, base_rate + step / warm_up * difference.",
    cases=((0, 0.1, 8, 100), (50, 0.1, 8, 100), (99, 0.1, 8, 100), (900, 0.2, 4, 20), (0, 1, 8, 0)),
    mistakes={
        ("(1 + (factor - 1) * share)", "factor * share"): "That begins near 0. Goyal et al. begin "
        "with the base rate: it is right for the base batch, so not too large for a larger one.",
        ("step < warm_up", "warm_up"): "That never stops rising: after the warm-up the rate stays.",
        ("(factor - 1)", "0"): "That warms up to the base rate, not to factor times it.",
    },
)
def scaled_rate(step, base_rate, factor, warm_up):
    """Return the learning rate at a step: linear warm-up from base_rate to factor * base_rate.

    warm_up: steps until the rate is reached; 0 for none. step: counted from 0.
    """
    share = step / warm_up if step < warm_up else 1
    return base_rate * (1 + (factor - 1) * share)


@FunctionTask.from_solution(
    hint="How long may the step take at most? How much of that is left for computing?",
    stronger="One rank has no overhead, and is once as fast. For more the step may take "
    "compute_seconds / times, of which overhead_seconds are gone. Divide compute_seconds by what "
    "is left, and round up. Nothing left: 0.",
    cases=((1.0, 0.05, 2), (1.0, 0.05, 8), (1.0, 0.05, 20), (0.6, 0.1, 2.5), (0.2, 0.3, 1)),
    unit="ranks",
    mistakes={
        (" - overhead_seconds", ""): "That forgets the overhead: with it, more ranks are needed.",
        (lambda compute, over, times: math.ceil((1 + over / compute) * times)): "That divides the "
        "overhead among the ranks too. Every rank waits for it, all at once.",
        ("math.ceil(", "int("): "That rounds down: with one rank less the step is too long.",
    },
)
def ranks_for_speed_up(compute_seconds, overhead_seconds, times):
    """Return the fewest ranks whose step is `times` times as fast as one rank's; 0 if none is.

    overhead_seconds: added to each step on two or more ranks, however many.
    """
    if times <= 1:
        return 1
    left = compute_seconds / times - overhead_seconds  # seconds of the wanted step for computing
    return math.ceil(compute_seconds / left) if left > 0 else 0


@FunctionTask.from_solution(
    hint="What do you divide by in the end, and how often? And which samples are there twice?",
    stronger="One dictionary of all batches has a sample once. Take the mean of its values.",
    cases=(
        ([[{0: 2.0, 2: 4.0}, {4: 9.0}], [{1: 3.0, 3: 5.0}, {0: 2.0}]],),
        ([[{0: 1.0, 3: 2.0}, {6: 6.0}], [{1: 1.5, 4: 2.5}], [{2: 3.5, 5: 0.5}, {0: 1.0, 1: 1.5}]],),
        ([[{0: 4.0}], [{1: 2.0}]],),
    ),
    mistakes={
        (lambda ranks: fmean(fmean(fmean(b.values()) for b in own) for own in ranks)): "That is a "
        "mean of the batches' means: a short batch weighs as much as a full one. Divide once.",
        (lambda ranks: fmean(fmean(n for b in own for n in b.values()) for own in ranks)): "That "
        "is a mean of the ranks' means: ranks with few samples weigh as much. Divide once.",
        ("dict(dealt)", "dict(enumerate(loss for _, loss in dealt))"): "Sums and counts are right, "
        "but some samples are in them twice: the sampler deals them out again.",
    },
)
def evaluate_over_ranks(ranks):
    """The mean loss of the held-out samples, each of which counts once.

    ranks: for each rank its batches, {id of a sample: its loss}. Several ranks may have a sample.
    """
    dealt = [sample for batches in ranks for batch in batches for sample in batch.items()]
    once = dict(dealt)
    return sum(once.values()) / len(once)


@FunctionTask.from_solution(
    hint="Which gradient would one process clip? And what does clipping leave alone?",
    stronger="First the mean over the ranks, number by number. Then its norm: if that is above "
    "most, multiply every number by most / norm; else leave them.",
    cases=(
        ([[6.0, 0.0], [0.0, 8.0]], 1.0),
        ([[30.0, 40.0], [-29.4, -39.2]], 1.0),
        ([[3.0, 4.0], [3.0, 4.0]], 20.0),
        ([[0.3, 0.4], [0.9, 1.2], [0.0, 0.2]], 0.5),
    ),
    within=1e-5,  # clip_grad_norm_ adds 1e-6 to the norm
    mistakes={
        (
            lambda gradients, most: [
                fmean(numbers)
                for numbers in zip(*(clip_over_ranks([g], most) for g in gradients), strict=True)
            ]
        ): "That clips each rank's own gradient and averages what is left: a rank with a long one "
        "counts less than the others. DDP averages within backward(); clip behind it.",
        ("fmean(", "sum("): "That clips the sum. One process has the mean, as DDP's ranks have.",
        ("min(1.0, most", "(most"): "That makes short gradients longer: below `most` they stay.",
        ("factor * number", "max(-most, min(most, number))"): "That cuts each number by itself, "
        "which changes the direction (clip_grad_value_). clip_grad_norm_ has one factor.",
    },
)
def clip_over_ranks(gradients, most):
    """Return the gradient that every rank's optimizer applies, of a norm of at most `most`.

    gradients: for each rank a list of numbers, the gradient of its part of the batch.
    """
    mean = [fmean(numbers) for numbers in zip(*gradients, strict=True)]
    factor = min(1.0, most / math.hypot(*mean))
    return [factor * number for number in mean]


@FunctionTask.from_solution(
    hint="Which rank's mean counts more? And the ranks' means differ: does that spread the images?",
    stronger="mean: n * own mean, summed, divided by all images. variance: the same of n * "
    "(own variance + (own mean - mean) ** 2).",
    cases=(
        ([(8, 1.0, 0.5), (8, 3.0, 0.5)],),
        ([(6, 2.0, 1.0), (2, -2.0, 3.0)],),
        ([(4, 0.5, 2.0), (4, 0.5, 1.0), (8, -1.0, 0.25)],),
    ),
    unit="(mean, variance)",
    mistakes={
        (" + (own - mean) ** 2", ""): "The mean is right. But that is the variance around each "
        "rank's own mean: the distance of a rank's mean from the common one comes on top.",
        (lambda ranks: batch_statistics([(1, *rest) for _, *rest in ranks])): "That counts every "
        "rank alike: one with more images weighs more.",
        ("return mean, variance", "return mean, math.sqrt(variance)"): "The mean is right. The "
        "other is the standard deviation: don't take the root.",
    },
)
def batch_statistics(ranks):
    """Return (mean, variance) of the images of all ranks, as synchronised BatchNorm has them.

    ranks: for each rank (number of images, their mean, their variance).
    """
    images = sum(n for n, _, _ in ranks)
    mean = sum(n * own for n, own, _ in ranks) / images
    variance = sum(n * (spread + (own - mean) ** 2) for n, own, spread in ranks) / images
    return mean, variance


def _ranks(*rows):
    """Make a case: for each rank the milliseconds that it computes, waits, and does neither."""
    return ([dict(zip(("computes", "waits", "neither"), row, strict=True)) for row in rows],)


def _longest(part, ranks):
    return max(range(len(ranks)), key=lambda rank: ranks[rank][part])


@FunctionTask.from_solution(
    hint="Who keeps the others waiting does not wait. What is left of its step when you take the "
    "waiting away, and how much of that is left on the others?",
    stronger="A rank's own time is computes + neither. The late rank has the largest, and the gain "
    "is the distance to the second largest. The part at fault exceeds that second rank's by more.",
    cases=(
        _ranks((110.0, 80.0, 10.0), (108.0, 82.0, 10.0), (105.0, 6.0, 89.0), (112.0, 77.0, 11.0)),
        _ranks((190.0, 5.0, 5.0), (120.0, 75.0, 5.0), (149.0, 45.0, 6.0)),
        _ranks((130.0, 70.0, 100.0), (190.0, 8.0, 102.0)),
    ),
    unit="(rank, part, ms)",
    mistakes={
        (lambda ranks: (late := _longest("waits", ranks), "waits", ranks[late]["waits"])): "That "
        "rank waits longest, so it is early. An all-reduce lasts until the last rank has come, and "
        "every rank but that one sees a slow network.",
        (lambda ranks: (_longest("computes", ranks), *late_rank(ranks)[1:])): "The rank is the one "
        "that computes longest. Reading data, the garbage collector and other programs make a rank "
        'late too: add "neither".',
        (
            "own[late] - own[next_slowest]",
            'max(rank["waits"] for rank in ranks) - ranks[late]["waits"]',
        ): "Rank and part are right. But the gain is not the longest waiting: when the late rank "
        "is cured, all still wait for the next slowest.",
        (" - own[next_slowest]", ""): "Rank and part are right. Subtract the next slowest's time.",
        ("more.get", "ranks[late].get"): "Rank and gain are right. The longer part need not be the "
        "one at fault: compare it with the same part of the others.",
    },
)
def late_rank(ranks):
    """Return (rank that the others wait for, "computes" or "neither", milliseconds to gain).

    ranks: [{"computes": 110.0, "waits": 80.0, "neither": 10.0}, ...], milliseconds of one step. The
    part is the one that is too long; the gain is for a late rank as fast as the next slowest.
    """
    own = [rank["computes"] + rank["neither"] for rank in ranks]
    *_, next_slowest, late = sorted(range(len(ranks)), key=own.__getitem__)
    more = {part: ranks[late][part] - ranks[next_slowest][part] for part in ("computes", "neither")}
    return late, max(more, key=more.get), own[late] - own[next_slowest]
