"""Pipeline schedules, their timetables and bubbles: `simulate(plan("1f1b", 4, micro_batches=8))`.

A plan is the order in which each rank computes, as torch.distributed.pipelining carries it out:
GPipe (Huang et al., 2019, arXiv:1811.06965), 1F1B and interleaved 1F1B (Narayanan et al., 2021,
arXiv:2104.04473), zero bubble (Qi et al., 2023, arXiv:2401.10241, its ZB1P and its ZB-V) and
DualPipeV (DeepSeek-AI, 2024, arXiv:2412.19437, and its DualPipe repository). A timetable says when
each action begins and ends, simulated or recorded (bootcamp.records.actions).
"""

import statistics
from collections import Counter, defaultdict
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

# {schedule: stages of a rank}
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "zb-v": 2, "dualpipe": 2}
SCHEDULES = tuple(CHUNKS)
LEAST = {"1f1b": 1, "dualpipe": 2}  # micro-batches that torch's schedule needs for each rank


class Action(NamedTuple):
    """A forward (F) or a backward (B), or its halves: of the stage's input (I), its weights (W)."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch} of stage {self.stage}"


class Span(NamedTuple):
    """An action with its rank and when it began and ended, in seconds from the step's begin."""

    rank: int
    action: Action
    began: float
    ended: float


class Impossible(ValueError):
    """Raised for a plan that can't be made or can't be carried out, with the reason."""


# Plans


def stages_of_rank(schedule: str, rank: int, ranks: int) -> list[int]:
    """Return the stages of a rank: in turn, or like a V with the first and the last on rank 0."""
    if schedule in ("zb-v", "dualpipe"):
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, CHUNKS[schedule] * ranks, ranks))


def count_borders(schedule: str, rank: int, ranks: int) -> int:
    """Count the borders between a stage of this rank and one of another."""
    mine, last = stages_of_rank(schedule, rank, ranks), CHUNKS[schedule] * ranks - 1
    return sum(0 <= j <= last and j not in mine for i in mine for j in (i - 1, i + 1))


def plan(schedule: str, ranks: int, micro_batches: int) -> list[list[Action]]:
    """Return each rank's actions in their order. Raises Impossible if the numbers don't fit."""
    if schedule not in SCHEDULES:
        raise Impossible(f"no schedule {schedule!r}: choose one of {', '.join(SCHEDULES)}")
    over = f"{schedule} over {ranks} ranks"
    least = max(1, LEAST.get(schedule, 0) * ranks)
    if micro_batches < least:
        raise Impossible(f"{over} needs at least {least} micro-batches, not {micro_batches}")
    if schedule in ("interleaved", "zero-bubble") and micro_batches % _rounds(ranks, micro_batches):
        raise Impossible(
            f"{over} sends micro-batches in rounds of equal size, and {micro_batches} do not "
            f"divide: take a multiple of {ranks}"
        )
    order = {"zero-bubble": _zero_bubble, "zb-v": _zb_v, "dualpipe": _dualpipe}
    make = order.get(schedule, partial(_alternate, schedule))
    return [make(rank, ranks, micro_batches) for rank in range(ranks)]


def _rounds(ranks: int, micro_batches: int) -> int:
    """Count the rounds in which micro-batches pass one stage of every rank, then the other."""
    return max(1, micro_batches // ranks)


def _alternate(schedule: str, rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Order some forwards, then forward and backward in turn, then the remaining backwards.

    GPipe begins with all forwards, 1F1B with one for each rank below, to which it has to get and
    whose backward has to come back. Interleaved, a round passes one stage first.
    """
    stages, below = stages_of_rank(schedule, rank, ranks), ranks - 1 - rank
    size = micro_batches // (_rounds(ranks, micro_batches) if len(stages) > 1 else 1)
    backward = "I" if schedule == "zero-bubble" else "B"
    forwards, backwards = [], []
    for begin in range(0, micro_batches, size):
        batch = range(begin, begin + size)
        forwards += [Action("F", stage, i) for stage in stages for i in batch]
        backwards += [Action(backward, stage, i) for stage in reversed(stages) for i in batch]
    first = {"gpipe": micro_batches, "1f1b": below, "zero-bubble": size + below}
    first = min(first.get(schedule, size + 2 * below), len(forwards))
    turns = chain(*zip(forwards[first:], backwards, strict=False))
    return [*forwards[:first], *turns, *backwards[len(forwards) - first :]]


def _zero_bubble(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Interleaved, with backwards in halves: weights' gradients are computed where a rank waits."""
    order, waiting = [], []
    for action in _alternate("zero-bubble", rank, ranks, micro_batches):
        order.append(action)
        if action.kind == "I":
            waiting.append(action._replace(kind="W"))
            if len(waiting) > rank:  # a later rank keeps more for the end, where it waits
                order.append(waiting.pop(0))
    return order + waiting


def _zb_v(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """ZB-V: forward, I and W in turn on both legs of a V; only a rank's last W wait for the end."""
    down, up = stages_of_rank("zb-v", rank, ranks)
    below, least = ranks - rank, max(2 * ranks - 1, micro_batches)
    steps = [("F", down)] * (2 * below - 1)
    steps += [("F", up), ("F", down)] * rank
    steps += [("F", up), ("I", up), ("W", up)] * below
    for step in range(least - ranks):
        steps += [("F", down)] * (step < least - 2 * ranks + rank + 1)
        steps += [("I", down), ("W", down), ("F", up), ("I", up), ("W", up)]
    steps += [("I", down), ("I", up)] * rank
    steps += [("I", down), ("W", down)] * below
    steps += [("W", up)] * rank + [("W", down)] * rank
    # torch plans with `least` micro-batches and leaves out those that there are not
    return [action for action in _number(steps) if action.micro_batch < micro_batches]


def _dualpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """DualPipeV's eight steps: micro-batches run down the V and up again, both at the same time."""
    down, up = stages_of_rank("dualpipe", rank, ranks)
    below, whole = ranks - 1 - rank, rank + 1
    steps = [("F", down)] * 2 * below
    steps += [("F", down), ("F", up)] * whole
    steps += [("I", up), ("W", up), ("F", up)] * below
    both = [("F", down), ("B", up), ("F", up), ("B", down)]
    steps += both * (micro_batches - 2 * ranks + whole)
    steps += [("B", up), ("F", up), ("B", down)] * below
    # of the last backwards, the second half are cut in two: nobody waits for the weights' half
    legs = [(up, down)[i % 2] for i in range(2 * whole)]
    steps += [("B", leg) for leg in legs[:whole]] + [("I", leg) for leg in legs[whole:]]
    cut = legs[whole:] + [down] * below
    for leg in cut[:below]:
        steps += [("W", leg), ("I", down)]
    return _number(steps + [("W", leg) for leg in cut[below:]])


def _number(steps: list[tuple[str, int]]) -> list[Action]:
    """Number the micro-batches of (kind, stage); a W is the other half of its stage's first I."""
    done, halves, order = Counter(), defaultdict(list), []
    for kind, stage in steps:
        if kind == "W":
            i = halves[stage].pop(0)
        else:
            i = done[kind == "F", stage]
            done[kind == "F", stage] += 1
        if kind == "I":
            halves[stage].append(i)
        order.append(Action(kind, stage, i))
    return order


# Timetables


def simulate(
    orders: list[list[Action]],
    forward_seconds: float | list[float] = 1.0,  # of one micro-batch in a stage, or by stage
    backward_seconds: float | list[float] = 2.0,
    input_share: float = 0.5,  # how much of a backward is its half I, which stage 0 has not
) -> list[Span]:
    """Return when actions begin and end if ranks follow their orders and wait for their inputs.

    Raises Impossible if ranks wait for each other for ever.
    """
    last = max(action.stage for order in orders for action in order)

    def seconds(kind: str, stage: int) -> float:
        given = forward_seconds if kind == "F" else backward_seconds
        whole = given[stage] if isinstance(given, list) else given
        half = input_share * whole if stage else 0.0
        return {"I": half, "W": whole - half}.get(kind, whole)

    free, ended, spans = [0.0] * len(orders), {}, []
    left = [list(order) for order in orders]
    while any(left):
        before = len(spans)
        for rank, order in enumerate(left):
            while order and all(need in ended for need in _list_needs(order[0], last)):
                action = order.pop(0)
                began = max([free[rank], *(ended[need] for need in _list_needs(action, last))])
                free[rank] = began + seconds(action.kind, action.stage)
                ended[_complete(action)] = free[rank]
                spans.append(Span(rank, action, began, free[rank]))
        if len(spans) == before:
            stuck = next(order[0] for order in left if order)
            raise Impossible(f"the plan never goes on: {stuck} waits for what is never done")
    return spans


def timetable(schedule: str, ranks: int, micro_batches: int) -> list[Span]:
    """Simulate equal stages, in a rank's forwards of one micro-batch; its backward takes two."""
    stages = CHUNKS[schedule]
    return simulate(plan(schedule, ranks, micro_batches), 1 / stages, 2 / stages)


def _list_needs(action: Action, last: int) -> list[Action]:
    """List the actions that must be over before this one."""
    kind, stage, i = _complete(action)
    if kind == "F":
        return [Action("F", stage - 1, i)] if stage else []
    if kind == "W":
        return [Action("B", stage, i)]  # its own half I
    return [Action("F", stage, i)] + ([Action("B", stage + 1, i)] if stage < last else [])


def _complete(action: Action) -> Action:
    """Return the action for which others wait: a half I is as good as its backward."""
    return action._replace(kind="B") if action.kind == "I" else action


# What a timetable says


def list_orders(spans: list[Span]) -> list[list[Action]]:
    """List each rank's actions in the order in which they began."""
    return [[span.action for span in of_rank] for of_rank in group_by_rank(spans)]


def group_by_rank(spans: list[Span]) -> list[list[Span]]:
    """List each rank's spans in the order in which they began."""
    ranks = range(1 + max(span.rank for span in spans))
    return [sorted((s for s in spans if s.rank == rank), key=lambda s: s.began) for rank in ranks]


def makespan(spans: list[Span]) -> float:
    """Return the seconds from the first begin to the last end, over all ranks."""
    return max(span.ended for span in spans) - min(span.began for span in spans)


def busy_seconds(spans: list[Span]) -> list[float]:
    return [sum(span.ended - span.began for span in of_rank) for of_rank in group_by_rank(spans)]


def idle_share(spans: list[Span]) -> list[float]:
    """Return the share of the makespan that each rank waits."""
    return [1 - seconds / makespan(spans) for seconds in busy_seconds(spans)]


def bubble(spans: list[Span]) -> float:
    """Divide idle by busy time of all ranks: the papers' bubble, (p-1)/m for GPipe and 1F1B.

    A share of the makespan is another number: a bubble of 1 means that ranks wait half the time.
    """
    seconds = busy_seconds(spans)
    return len(seconds) * makespan(spans) / sum(seconds) - 1


def bubble_by_formula(schedule: str, ranks: int, micro_batches: int) -> float | None:
    """Return the papers' bubble for stages that take equally long; None where they give none.

    (p-1)/m, with v stages a rank (p-1)/(v m) if p divides m (arXiv:2104.04473, section 2.2); with
    the backward pass in halves (p-1)/(6m), in a V from 2p micro-batches on (arXiv:2401.10241).
    """
    if schedule in ("gpipe", "1f1b") or schedule == "interleaved" and not micro_batches % ranks:
        return (ranks - 1) / (CHUNKS[schedule] * micro_batches)
    interleaved = schedule == "zero-bubble" and not micro_batches % ranks
    if interleaved or schedule in ("zb-v", "dualpipe") and micro_batches >= 2 * ranks:
        return (ranks - 1) / (6 * micro_batches)
    return None


class Kept(NamedTuple):
    """Bytes that a stage keeps of one micro-batch."""

    whole: float  # from the forward to the end of the backward
    between: float = 0  # on top, from the half I to the half W
    output: float = 0  # part of an output that is held to the end of the step
    gradient: float = 0  # the same of the gradient that a backward sends

    def change(self, kind: str) -> float:
        """Return by how much more is held after an action."""
        end = self.output - self.whole
        moved = {"F": self.whole, "B": self.gradient + end, "I": self.gradient + self.between}
        return moved.get(kind, end - self.between)


def most_held_bytes(order: list[Action], kept: dict[int, Kept]) -> float:
    """Return the most that a rank holds after any of its actions. kept: by stage."""
    return max(accumulate(kept[action.stage].change(action.kind) for action in order))


def most_in_flight(spans: list[Span]) -> list[int]:
    """Count the most micro-batches whose activations each rank holds at one time, by stage."""
    one = defaultdict(lambda: Kept(1))
    return [most_held_bytes(order, one) for order in list_orders(spans)]


def median_seconds(spans: list[Span]) -> dict:
    """Return the seconds that `simulate` takes: each stage's median forward and backward."""
    seconds = defaultdict(list)
    for _, (kind, stage, _), began, ended in spans:
        seconds[kind, stage].append(ended - began)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    stages = range(1 + max(stage for _, stage in median))
    halves = [(median["I", s], median["W", s]) for s in stages if s and ("I", s) in median]
    share = sum(half for half, _ in halves) / sum(map(sum, halves)) if halves else 0.5
    # DualPipe cuts some backwards in two and leaves others whole
    backward = [median.get(("B", s)) or median["I", s] + median["W", s] for s in stages]
    forward = [median["F", s] for s in stages]
    return {"forward_seconds": forward, "backward_seconds": backward, "input_share": share}


def hand_over_seconds(spans: list[Span]) -> float:
    """Return the median seconds from the end of an action to its successor's begin on another rank.

    Of actions for which their rank was waiting already; 0.0 where there is none.
    """
    last = max(span.action.stage for span in spans)
    ended = {_complete(span.action): span.ended for span in spans}
    delays = []
    for of_rank in group_by_rank(spans):
        mine = {span.action.stage for span in of_rank}
        for before, span in pairwise(of_rank):
            needs = _list_needs(span.action, last)
            needed = [ended[need] for need in needs if need.stage not in mine]
            if needed and max(needed) > before.ended:
                delays.append(span.began - max(needed))
    return statistics.median(delays) if delays else 0.0
