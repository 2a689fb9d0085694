"""Exercises of lesson 02c: one graph, and how many workers."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

from bootcamp.classroom.function_task import FunctionTask
from bootcamp.classroom.tasks import Wrong
from bootcamp_lessons import faster_step


@dataclass(frozen=True)
class OneGraphTask(FunctionTask):
    """A function of a tensor, a list in each case, that torch.compile must record as one graph."""

    def attempt(self, given: Callable | None) -> str:
        """Compare values, then count graphs. Raises Wrong."""
        said = super().attempt(given)
        made, why = faster_step.graphs_of(given, *map(_as_tensor, self.cases))
        if made[-1] != 1:
            count = "no graph" if not made[-1] else f"{made[-1]} graphs"
            why = f'torch says: "{why}".' if why else "An if on a tensor ends a graph."
            raise Wrong("one graph in all calls", count, f"The values are right. {why}")
        return f"{said} And it is one graph."

    def _call(self, given: Callable, case: tuple):
        return super()._call(_of_lists(given), case)

    def _all(self, function: Callable) -> list:
        return super()._all(_of_lists(function))


def _as_tensor(case: tuple) -> tuple:
    numbers, *others = case
    return torch.tensor(numbers), *others


def _of_lists(function: Callable) -> Callable:
    """The function, given a list and giving one."""

    @functools.wraps(function)
    def on_lists(*case):
        answer = function(*_as_tensor(case))
        return answer.tolist() if isinstance(answer, torch.Tensor) else answer

    return on_lists


def clipped(gradient, longest):
    """The gradient, scaled down to the length `longest` if it is longer."""
    return gradient * (longest / gradient.norm()).clamp(max=1)


ONE_GRAPH = OneGraphTask(
    name="one_graph",
    hint="An if in Python needs the tensor's value now, so a graph ends before it. Compute a "
    "factor that is 1 where nothing has to be done.",
    stronger="The factor is longest / gradient.norm(), but never more than 1: .clamp(max=1).",
    solved_by=clipped,
    cases=(([3.0, 4.0], 1.0), ([0.3, 0.4], 1.0), ([6.0, -8.0], 1.0), ([0.0, 2.0], 1.0)),
    mistakes={
        "That scales short gradients too, up to the length. They stay as they are.": (
            lambda gradient, longest: gradient * longest / gradient.norm()
        ),
        "That cuts off each number by itself, which turns the gradient. Scale all of them by one "
        "factor.": lambda gradient, longest: gradient.clamp(-longest, longest),
        "That divides by the square of the length. The length is its root: .norm().": (
            lambda gradient, longest: gradient * (longest / gradient.square().sum()).clamp(max=1)
        ),
        "That is the factor the wrong way round: it lengthens long gradients.": (
            lambda gradient, longest: gradient * (gradient.norm() / longest).clamp(min=1)
        ),
    },
)


def workers_for(read, train, cores):
    """The fewest workers with which a batch takes as little time as it can.

    read, train: milliseconds of work for a batch. cores: those that the program may use.
    """
    shortest = max(train, (read + train) / cores)
    return ceil(read / shortest)


WORKERS_FOR = FunctionTask(
    hint="Two limits hold however many workers there are: the training process, and all the work "
    "spread over the cores. The longer one is the time of a batch.",
    stronger="shortest = max(train, (read + train) / cores). A worker makes a share of the "
    "batches: read / workers must be at most that, so round read / shortest up.",
    solved_by=workers_for,
    cases=((40, 20, 2), (90, 30, 16), (100, 30, 4), (10, 50, 8), (64, 20, 3)),
    unit="workers",
    mistakes={
        "That forgets the cores: workers without a core of their own make nothing sooner.": (
            lambda read, train, cores: ceil(read / train)
        ),
        "That is rounded down, so the last part of the reading is waited for.": (
            lambda read, train, cores: int(read / max(train, (read + train) / cores))
        ),
        "That is a worker for each core. The training needs a core too, and often fewer workers "
        "keep up.": lambda read, train, cores: cores,
        "That is a worker for each core that training leaves free. Often fewer keep up.": (
            lambda read, train, cores: cores - 1
        ),
    },
)

TASKS = [ONE_GRAPH, WORKERS_FOR]
