"""Exercises of lessons 03 to 05 that are a function in a cell."""

from bootcamp.classroom.function_task import FunctionTask


def largest_batch(devices, memory, state, activations, outputs):
    """Samples of the largest global batch with which device 0 of DataParallel is not too full.

    memory: of each device. state: parameters, gradients and optimizer state. activations, outputs:
    of one sample; the outputs count twice on device 0. All in MB.
    """
    per_sample = activations / devices + 2 * outputs  # device 0 has the outputs of all samples
    return int((memory - state) // per_sample)


def _batch_of_ranks(devices, memory, state, activations, outputs):
    return int((memory - state) // ((activations + 2 * outputs) / devices))


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
        "of the whole batch.": _batch_of_ranks,
        "That leaves all activations on device 0. Each device runs the forward of its share, and "
        "keeps the activations of that.": {"devices": 1},
        "That forgets the state: parameters, gradients and optimizer state are there before any "
        "sample.": {"state": 0},
        "That counts the outputs once. The loss keeps their log-softmax, and their gradient is as "
        "large.": lambda n, memory, state, kept, out: largest_batch(
            n, memory, state, kept, out / 2
        ),
        "That is too many by a factor of devices: largest_batch asks for the global batch, and "
        "device 0 has the outputs of all of it.": lambda n, memory, state, kept, out: (
            n * largest_batch(n, memory, state, kept, out)
        ),
        "That is right but for the last part "
        "of a sample, which does not fit: round down.": lambda n, memory, state, kept, out: (
            (memory - state) / (kept / n + 2 * out)
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


def _blocks(order, rank, world):
    padded = order + order[: -len(order) % world]
    share = len(padded) // world
    return padded[rank * share : (rank + 1) * share]


def _unequal_blocks(order, rank, world):
    share = -(-len(order) // world)
    return order[rank * share : (rank + 1) * share]


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
        "cards.": _blocks,
        "That is right where the samples divide. Where they don't, some ranks get one less: they "
        "would do fewer steps, and the "
        "others would wait for them for ever.": lambda order, rank, world: order[rank::world],
        "That leaves out the samples that do not divide, as drop_last=True does. Here some are to "
        "be repeated instead.": lambda order, rank, world: order[: len(order) // world * world][
            rank::world
        ],
        "Where the samples divide already, that repeats as many as there are ranks. "
        "-len(order) % world is 0 there.": lambda order, rank, world: (
            order + order[: world - len(order) % world]
        )[rank::world],
        "Those are blocks of neighbours, of different lengths. Repeat samples until they divide, "
        "and deal them out one by one.": _unequal_blocks,
        "That repeats the last sample. The ones "
        "at the beginning of the order are repeated.": lambda order, rank, world: (
            order + order[-1:] * (-len(order) % world)
        )[rank::world],
        "That shares out sorted ids: the shuffled order is lost.": lambda order, rank, world: (
            samples_of_rank(sorted(order), rank, world)
        ),
        "Those are another rank's samples: ranks count "
        "from 0, as places in a list do.": lambda order, rank, world: samples_of_rank(
            order, (rank - 1) % world, world
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
        "are 2 * (ranks - 1), one after another.": lambda size, n, alpha, rate: (
            alpha + 2 * (n - 1) / n * size / rate
        ),
        "That sends all data in every step. A "
        "step carries one piece, 1/N of the data.": lambda size, n, alpha, rate: (
            2 * (n - 1) * (alpha + size / rate)
        ),
        "That is a step too many in both rounds: a piece is at home on one rank already, so N-1 "
        "steps take it everywhere.": lambda size, n, alpha, rate: 2 * n * (alpha + size / n / rate),
        "That turns bytes into bits. The "
        "rate is given in bytes per second.": lambda size, n, alpha, rate: (
            2 * (n - 1) * (alpha + 8 * size / n / rate)
        ),
        "That is the time for the bytes alone. For small data the start-up cost decides: "
        "alpha_seconds in each step.": lambda size, n, alpha, rate: 2 * (n - 1) / n * size / rate,
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
        "many times too large, and SGD's step with them.": lambda rate, batch, n, passes: (
            batch * n * passes,
            rate * n,
        ),
        "The samples are right. But the script itself multiplies its rate by hvd.size(), the "
        "number of ranks.": lambda rate, batch, n, passes: (batch * n * passes, rate * passes),
        "The samples are right. The rate is not: the script multiplies it by hvd.size(), and "
        "Horovod adds up the gradients of the passes.": lambda rate, batch, n, passes: (
            batch * n * passes,
            rate,
        ),
        "That has the ranks in the rate twice. Horovod averages over the ranks; only the script's "
        "own factor hvd.size() is left.": lambda rate, batch, n, passes: (
            batch * n * passes,
            rate * n * n * passes,
        ),
        "The rate is right. But every pass takes "
        "other samples: a step has those of all passes.": lambda rate, batch, n, passes: (
            batch * n,
            rate * n * passes,
        ),
        "The rate is right. But `batch` is one "
        "rank's: a step has the samples of all ranks.": lambda rate, batch, n, passes: (
            batch * passes,
            rate * n * passes,
        ),
        "Both numbers are right, in the "
        "other order: samples first, then the rate.": lambda rate, batch, n, passes: (
            rate * n * passes,
            batch * n * passes,
        ),
    },
)

TASKS = [LARGEST_BATCH, SAMPLES_OF_RANK, RING_SECONDS, IN_ONE_PROCESS]
