"""Pipeline schedules in theory: `simulate(plan("1f1b", ranks=4, micro_batches=8))`.

A plan has the order in which each rank computes, as torch.distributed.pipelining carries it out:
GPipe (Huang et al., 2019, arXiv:1811.06965), 1F1B and interleaved 1F1B (Narayanan et al., 2021,
arXiv:2104.04473), zero bubble (Qi et al., 2023, arXiv:2401.10241, its ZB1P and its ZB-V) and
DualPipeV (DeepSeek-AI, 2024, arXiv:2412.19437, and its DualPipe repository). A timetable says when
each action begins and ends, simulated or recorded (bootcamp.records.actions).
"""

import contextlib
import statistics
from collections import Counter
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

# {schedule: stages of a rank}
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "zb-v": 2, "dualpipe": 2}
SCHEDULES = tuple(CHUNKS)
LEAST = {"1f1b": 1, "dualpipe": 2}  # micro-batches that torch's schedule needs for each rank


class Action(NamedTuple):
    """One piece of a rank's work.

    kind: F, a forward; B, a whole backward; I and W, its halves: the gradient of the stage's input,
    and that of its weights.
    """

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
    """A plan that can't be made or can't be carried out. The text says why."""


# Plans


def stages_of_rank(schedule: str, rank: int, ranks: int) -> list[int]:
    """Return the stages of a rank: in turn, or like a V with the first and the last on rank 0."""
    if schedule in ("zb-v", "dualpipe"):
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, CHUNKS[schedule] * ranks, ranks))


def borders(schedule: str, rank: int, ranks: int) -> int:
    """Count the borders between a stage of this rank and one of another."""
    mine, last = stages_of_rank(schedule, rank, ranks), CHUNKS[schedule] * ranks - 1
    return sum(0 <= j <= last and j not in mine for i in mine for j in (i - 1, i + 1))


def plan(schedule: str, ranks: int, micro_batches: int) -> list[list[Action]]:
    """Return each rank's actions in their order. Raises Impossible if the numbers don't fit."""
    if schedule not in SCHEDULES:
        raise Impossible(f"no schedule {schedule!r}: choose one of {', '.join(SCHEDULES)}")
    least = max(1, LEAST.get(schedule, 0) * ranks)
    if micro_batches < least:
        raise Impossible(
            f"{schedule} over {ranks} ranks needs at least {least} micro-batches, not "
            f"{micro_batches}"
        )
    rounds = max(1, micro_batches // ranks)
    if schedule in ("interleaved", "zero-bubble") and micro_batches % rounds:
        raise Impossible(
            f"{schedule} over {ranks} ranks sends micro-batches in rounds of equal size, and "
            f"{micro_batches} do not divide: take a multiple of {ranks}"
        )
    return [_ORDERS[schedule](rank, ranks, micro_batches) for rank in range(ranks)]


def _weave(forwards: list, backwards: list, warm_up: int) -> list[Action]:
    """Some forwards, then forward and backward in turn, then the backwards that remain."""
    pairs = list(zip(forwards[warm_up:], backwards, strict=False))
    return [*forwards[:warm_up], *chain(*pairs), *backwards[len(pairs) :]]


def _gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action(kind, rank, i) for kind in "FB" for i in range(micro_batches)]


def _one_forward_one_backward(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """As many forwards as there are ranks below, then forward and backward in turn."""
    actions = _gpipe(rank, ranks, micro_batches)
    return _weave(actions[:micro_batches], actions[micro_batches:], warm_up=ranks - 1 - rank)


def _interleaved(
    rank: int, ranks: int, micro_batches: int, backward: str = "B", ahead: int = 2
) -> list[Action]:
    """1F1B with two stages a rank: a round of micro-batches passes one stage, then the other.

    ahead: forwards more for each rank below; a forward has to get there, its backward back.
    """
    stages = stages_of_rank("interleaved", rank, ranks)
    size = micro_batches // max(1, micro_batches // ranks)
    forwards, backwards = [], []
    for begin in range(0, micro_batches, size):
        batch = range(begin, begin + size)
        forwards += [Action("F", stage, i) for stage in stages for i in batch]
        backwards += [Action(backward, stage, i) for stage in reversed(stages) for i in batch]
    return _weave(forwards, backwards, size + ahead * (ranks - 1 - rank))


def _zero_bubble(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Interleaved, with backwards in halves: weights' gradients are computed where a rank waits."""
    order, waiting = [], []
    for action in _interleaved(rank, ranks, micro_batches, backward="I", ahead=1):
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
    done, order = Counter(), []
    for kind, stage in steps:
        order.append(Action(kind, stage, done[kind, stage]))
        done[kind, stage] += 1
    # torch plans with `least` micro-batches and leaves out those that there are not
    return [action for action in order if action.micro_batch < micro_batches]


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
    kinds = "B" * whole + "I" * whole
    steps += [(kind, (up, down)[i % 2]) for i, kind in enumerate(kinds)]
    steps += [("W", down), ("I", down)] * below
    steps += [("W", down)] * whole
    done, waiting, order = Counter(), [], []
    for kind, stage in steps:
        if kind == "W":  # of the backward that was cut first, if any is left
            order += [waiting.pop(0)] if waiting else []
            continue
        action = Action(kind, stage, done[kind == "F", stage])
        done[kind == "F", stage] += 1
        order.append(action)
        waiting += [action._replace(kind="W")] if kind == "I" else []
    return order


_ORDERS = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
    "zb-v": _zb_v,
    "dualpipe": _dualpipe,
}


# Timetables


def simulate(
    orders: list[list[Action]],
    forward_seconds: float | list[float] = 1.0,
    backward_seconds: float | list[float] = 2.0,
    input_share: float = 0.5,
) -> list[Span]:
    """When each action begins and ends if every rank follows its order and waits for what it needs.

    forward_seconds, backward_seconds: of one micro-batch in one stage; a list has one for each
    stage. input_share: how much of a backward is its half I. Nobody asks for the gradient of stage
    0's input: there I takes no time and W all of it.

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
            while order and None not in (needed := _needs(order[0], last, ended)):
                action = order.pop(0)
                began = max([free[rank], *(end for _, end in needed)])
                free[rank] = began + seconds(action.kind, action.stage)
                ended[("B" if action.kind == "I" else action.kind, *action[1:])] = free[rank]
                spans.append(Span(rank, action, began, free[rank]))
        if len(spans) == before:
            stuck = next(order[0] for order in left if order)
            raise Impossible(f"the plan never goes on: {stuck} waits for what is never done")
    return spans


def timetable(schedule: str, ranks: int, micro_batches: int) -> list[Span]:
    """Simulate a schedule for equal stages.

    The unit is a rank's forward of one micro-batch, in all its stages; its backward takes two.
    """
    stages = CHUNKS[schedule]
    return simulate(plan(schedule, ranks, micro_batches), 1 / stages, 2 / stages)


def _needs(action: Action, last: int, ended: dict) -> list[tuple[int, float] | None]:
    """(stage, when it was done) of each action that must be over before; None if one is not."""
    kind, stage, i = action
    needed = {
        "F": [("F", stage - 1)] if stage else [],
        "B": [("F", stage)] + ([("B", stage + 1)] if stage < last else []),
        "W": [("B", stage)],  # its own half I
    }["B" if kind == "I" else kind]
    return [
        (there, ended[what, there, i]) if (what, there, i) in ended else None
        for what, there in needed
    ]


# What a timetable says


def orders(spans: list[Span]) -> list[list[Action]]:
    """The order in which each rank did its actions."""
    return [[span.action for span in of_rank] for of_rank in by_rank(spans)]


def by_rank(spans: list[Span]) -> list[list[Span]]:
    """The spans of each rank, in the order of their beginnings."""
    ranks = range(1 + max(span.rank for span in spans))
    return [sorted((s for s in spans if s.rank == rank), key=lambda s: s.began) for rank in ranks]


def makespan(spans: list[Span]) -> float:
    """Seconds from the first action's begin to the last one's end, over all ranks."""
    return max(span.ended for span in spans) - min(span.began for span in spans)


def busy(spans: list[Span]) -> list[float]:
    """Seconds that each rank computes."""
    return [sum(span.ended - span.began for span in of_rank) for of_rank in by_rank(spans)]


def idle_share(spans: list[Span]) -> list[float]:
    """For each rank, what share of the makespan it waits."""
    return [1 - seconds / makespan(spans) for seconds in busy(spans)]


def bubble(spans: list[Span]) -> float:
    """Idle time over busy time, all ranks together: the papers' bubble, (p-1)/m for GPipe and 1F1B.

    A share of the makespan is another number: a bubble of 1 means that ranks wait half the time.
    """
    seconds = busy(spans)
    return len(seconds) * makespan(spans) / sum(seconds) - 1


def bubble_by_formula(schedule: str, ranks: int, micro_batches: int) -> float | None:
    """The papers' bubble, for stages that take equally long; None where they give none like it.

    (p-1)/m, with v stages a rank (p-1)/(v m) if p divides m (arXiv:2104.04473, section 2.2).
    """
    if schedule in ("gpipe", "1f1b") or schedule == "interleaved" and not micro_batches % ranks:
        return (ranks - 1) / (CHUNKS[schedule] * micro_batches)
    return None


def most_in_flight(spans: list[Span]) -> list[int]:
    """For each rank, the most micro-batches that a stage's activations are held of at one time.

    Two stages of one rank count twice. Held from the begin of the forward to the end of the
    backward, of a split one to the end of its half W.
    """
    change = {"F": 1, "B": -1, "W": -1, "I": 0}
    return [max(accumulate(change[a.kind] for a in order)) for order in orders(spans)]


def most_held(
    order: list[Action],
    kept: dict[int, float],
    between: dict[int, float],
    output_stays: dict[int, float],
    gradient_stays: dict[int, float],
) -> float:
    """The most bytes that a rank holds for its backwards, looked at after each of its actions.

    All by stage and for one micro-batch. kept: from the forward to the end of the backward.
    between: what comes on top from the half I to the half W. output_stays: the part of an output
    that is held to the end of the step because it was sent or will be returned; gradient_stays: the
    same of the gradient that a backward sends.
    """
    held = most = 0.0
    for kind, stage, _ in order:
        if kind == "F":
            held += kept[stage]
        if kind in "BI":
            held += gradient_stays[stage]
        if kind == "I":
            held += between[stage]
        if kind in "BW":
            held -= kept[stage] - output_stays[stage] + (between[stage] if kind == "W" else 0)
        most = max(most, held)
    return most


def which(spans: list[Span]) -> str | None:
    """The schedule whose plan these spans follow on every rank; None if they follow none."""
    done = orders(spans)
    micro_batches = 1 + max(span.action.micro_batch for span in spans)
    for schedule in SCHEDULES:
        with contextlib.suppress(Impossible):
            if plan(schedule, len(done), micro_batches) == done:
                return schedule
    return None


def measured_seconds(spans: list[Span]) -> dict:
    """What `simulate` asks for, as measured: each stage's median forward and backward."""
    seconds: dict[tuple, list[float]] = {}
    for _, (kind, stage, _), began, ended in spans:
        seconds.setdefault((kind, stage), []).append(ended - began)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    stages = range(1 + max(stage for _, stage in median))
    halves = [(median["I", s], median["W", s]) for s in stages if s and ("I", s) in median]
    share = sum(half for half, _ in halves) / sum(map(sum, halves)) if halves else 0.5
    backward = [sum(median.get((kind, s), 0.0) for kind in "BIW") for s in stages]
    for s in stages:  # DualPipe cuts some backwards in two and leaves others whole
        backward[s] = median.get(("B", s), backward[s])
    forward = [median["F", s] for s in stages]
    return {"forward_seconds": forward, "backward_seconds": backward, "input_share": share}


def hand_over_seconds(spans: list[Span]) -> float:
    """Seconds from the end of a rank's action to the begin of what waits for it on another.

    The median over the actions for which their rank was waiting already. 0.0 where there is none.
    """
    last = max(span.action.stage for span in spans)
    ended = {("B" if kind == "I" else kind, *rest): end for _, (kind, *rest), _, end in spans}
    delays = []
    for of_rank in by_rank(spans):
        mine = {span.action.stage for span in of_rank}
        for before, span in pairwise(of_rank):
            needed = [end for stage, end in _needs(span.action, last, ended) if stage not in mine]
            if needed and max(needed) > before.ended:
                delays.append(span.began - max(needed))
    return statistics.median(delays) if delays else 0.0
