"""Exercises of lesson 04d, each a function in a cell: evaluate over ranks, clip over ranks."""

import math
from statistics import fmean

from bootcamp.classroom.function_task import FunctionTask


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

TASKS = [EVALUATE, CLIP]
