"""Exercises of lesson 04c, each a function in a cell: the rate of a step, the ranks that pay."""

import math

from bootcamp.classroom.function_task import FunctionTask


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
        "batch, so it is not too large for a larger one.": lambda step, rate, k, warm_up: (
            k * rate * min(1, step / warm_up) if warm_up else k * rate
        ),
        "That never stops rising: after the warm-up the rate stays at factor times the base "
        "rate.": lambda step, rate, k, warm_up: (
            rate * (1 + (k - 1) * step / warm_up) if warm_up else k * rate
        ),
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
        "That rounds down. With one rank less the step takes longer than it "
        "may.": lambda compute, over, times: (
            1
            if times <= 1
            else int(compute / (compute / times - over))
            if compute / times > over
            else 0
        ),
    },
)

TASKS = [SCALED_RATE, RANKS_FOR_SPEED_UP]
