"""Pipeline schedules in theory: `simulate(plan("1f1b", ranks=4, micro_batches=8))`.

A plan (pipeline_orders.py) says in which order each rank computes; a timetable says when each
action begins and ends. A recorded run gives a timetable too (bootcamp.records.actions), so both are
measured and drawn alike.
"""

import contextlib
import itertools
import statistics
from typing import NamedTuple

from bootcamp.costs.pipeline_orders import CHUNKS, SCHEDULES, Action, Impossible, plan


class Span(NamedTuple):
    """An action with its rank and when it began and ended, in seconds from the step's begin."""

    rank: int
    action: Action
    began: float
    ended: float


def simulate(
    orders: list[list[Action]],
    forward_seconds: float | list[float] = 1.0,
    backward_seconds: float | list[float] = 2.0,
    input_share: float = 0.5,
    transfer_seconds: float = 0.0,
) -> list[Span]:
    """When each action begins and ends if every rank follows its order and waits for what it needs.

    forward_seconds, backward_seconds: of one micro-batch in one stage; a list has one for each
    stage. input_share: how much of a backward is its half I. transfer_seconds: from a rank to
    another. Nobody asks for the gradient of stage 0's input: there I takes no time and W all of it.

    Raises Impossible if ranks wait for each other for ever.
    """
    last = max(action.stage for order in orders for action in order)
    where = {action.stage: rank for rank, order in enumerate(orders) for action in order}
    seconds = _durations(last + 1, forward_seconds, backward_seconds, input_share)
    free, ended, places = [0.0] * len(orders), {}, [0] * len(orders)
    spans = []
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        before = len(spans)
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                action = order[places[rank]]
                needed = _needs(action, last, ended)
                if None in needed:
                    break
                at = [
                    end + (transfer_seconds if where[stage] != rank else 0) for stage, end in needed
                ]
                began = max([free[rank], *at])
                free[rank] = began + seconds[action.kind][action.stage]
                ended[("B" if action.kind == "I" else action.kind, *action[1:])] = free[rank]
                spans.append(Span(rank, action, began, free[rank]))
                places[rank] += 1
        if len(spans) == before:
            stuck = [o[place] for o, place in zip(orders, places, strict=True) if place < len(o)]
            raise Impossible(f"the plan never goes on: {stuck[0]} waits for what is never done")
    return spans


def timetable(schedule: str, ranks: int, micro_batches: int) -> list[Span]:
    """The plan of a schedule, simulated for equal stages.

    The unit is a rank's forward of one micro-batch; its backward takes two. A rank with several
    stages has an equal share of both in each.
    """
    stages = CHUNKS[schedule]
    orders = plan(schedule, ranks, micro_batches)
    return simulate(orders, forward_seconds=1 / stages, backward_seconds=2 / stages)


def _durations(stages: int, forward, backward, input_share: float) -> dict[str, list[float]]:
    forward, backward = (
        list(given) if isinstance(given, list | tuple) else [given] * stages
        for given in (forward, backward)
    )
    halves = [input_share * whole for whole in backward]
    halves[0] = 0.0
    weights = [whole - half for whole, half in zip(backward, halves, strict=True)]
    return {"F": forward, "B": backward, "I": halves, "W": weights}


def _needs(action: Action, last: int, ended: dict) -> list[tuple[int, float] | None]:
    """(stage, when it was done) of each action that must be over before; None if one is not."""
    kind, stage, i = action
    needed = []
    if kind == "F" and stage > 0:
        needed.append(("F", stage - 1))
    if kind in "BI":
        needed.append(("F", stage))
        if stage < last:
            needed.append(("B", stage + 1))
    if kind == "W":
        needed.append(("B", stage))  # its own half I
    return [
        (there, ended[what, there, i]) if (what, there, i) in ended else None
        for what, there in needed
    ]


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

    (p-1)/m, and with v stages a rank (p-1)/(v m) if the ranks divide the micro-batches
    (Narayanan et al., 2021, section 2.2).
    """
    if schedule == "interleaved" and micro_batches % ranks:
        return None
    if schedule in ("gpipe", "1f1b", "interleaved"):
        return (ranks - 1) / (CHUNKS[schedule] * micro_batches)
    return None


def most_in_flight(spans: list[Span]) -> list[int]:
    """For each rank, the most micro-batches that a stage's activations are held of at one time.

    Two stages of one rank count twice. Held from the begin of the forward to the end of the
    backward, of a split one to the end of its half W.
    """
    most = []
    for of_rank in by_rank(spans):
        held = list(
            itertools.accumulate(
                {"F": 1, "B": -1, "W": -1, "I": 0}[span.action.kind] for span in of_rank
            )
        )
        most.append(max(held))
    return most


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
    """What `simulate` asks for, as measured: each stage's median forward and backward, the share I.

    With them a simulation predicts from the stages' real durations and no longer from equal ones.
    """
    seconds: dict[tuple, list[float]] = {}
    for span in spans:
        key = (span.action.kind, span.action.stage)
        seconds.setdefault(key, []).append(span.ended - span.began)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    stages = range(1 + max(stage for _, stage in median))
    halves = [(median["I", s], median["W", s]) for s in stages if s and ("I", s) in median]
    whole = [
        median.get(("B", s), median.get(("I", s), 0.0) + median.get(("W", s), 0.0)) for s in stages
    ]
    share = sum(half for half, _ in halves) / sum(map(sum, halves)) if halves else 0.5
    forward = [median["F", s] for s in stages]
    return {"forward_seconds": forward, "backward_seconds": whole, "input_share": share}


def hand_over_seconds(spans: list[Span]) -> float:
    """Seconds from the end of a rank's action to the begin of what waits for it on another.

    The median over the actions for which their rank was waiting already. 0.0 where there is none.
    """
    last = max(span.action.stage for span in spans)
    ended = {("B" if kind == "I" else kind, *rest): end for _, (kind, *rest), _, end in spans}
    delays = []
    for of_rank in by_rank(spans):
        mine = {span.action.stage for span in of_rank}
        for before, span in itertools.pairwise(of_rank):
            needed = [end for stage, end in _needs(span.action, last, ended) if stage not in mine]
            if needed and max(needed) > before.ended:
                delays.append(span.began - max(needed))
    return statistics.median(delays) if delays else 0.0
