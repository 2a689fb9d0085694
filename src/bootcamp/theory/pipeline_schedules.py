"""Pipeline schedules in theory: `simulate(plan("1f1b", ranks=4, micro_batches=8))`.

A plan says in which order each rank computes; a timetable says when each action begins and ends. A
recorded run gives a timetable too (`recorded`), so both are measured and drawn alike. Standard
library only. The orders are those of GPipe (Huang et al., 2019, arXiv:1811.06965), 1F1B and
interleaved 1F1B (Narayanan et al., 2021, arXiv:2104.04473), zero bubble (Qi et al., 2023,
arXiv:2401.10241, its ZB1P) and DualPipeV (DeepSeek-AI, 2024, arXiv:2412.19437, and its DualPipe
repository), each as torch.distributed.pipelining carries it out.
"""

import contextlib
import itertools
import json
import statistics
from pathlib import Path
from typing import NamedTuple

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe")
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "dualpipe": 2}


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


def least_micro_batches(schedule: str, ranks: int) -> int:
    """How many micro-batches torch's schedule asks for."""
    return {"1f1b": ranks, "dualpipe": 2 * ranks}.get(schedule, 1)


def stages_of_rank(schedule: str, rank: int, ranks: int) -> list[int]:
    """The stages that a rank holds: in turn, or like a V with the first and the last on rank 0."""
    if schedule == "dualpipe":
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, CHUNKS[schedule] * ranks, ranks))


def plan(schedule: str, ranks: int, micro_batches: int) -> list[list[Action]]:
    """For each rank its actions in their order. Raises Impossible if the numbers don't fit."""
    if schedule not in SCHEDULES:
        raise Impossible(f"no schedule {schedule!r}: choose one of {', '.join(SCHEDULES)}")
    least = least_micro_batches(schedule, ranks)
    if micro_batches < least:
        raise Impossible(
            f"{schedule} over {ranks} ranks needs at least {least} micro-batches, not "
            f"{micro_batches}"
        )
    if schedule in ("interleaved", "zero-bubble") and micro_batches % _rounds(ranks, micro_batches):
        raise Impossible(
            f"{schedule} over {ranks} ranks sends micro-batches in rounds of equal size, and "
            f"{micro_batches} do not divide: take a multiple of {ranks}"
        )
    return [_ORDERS[schedule](rank, ranks, micro_batches) for rank in range(ranks)]


def _gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action(kind, rank, i) for kind in "FB" for i in range(micro_batches)]


def _one_forward_one_backward(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """As many forwards as there are ranks below, then forward and backward in turn."""
    forwards = [Action("F", rank, i) for i in range(micro_batches)]
    backwards = [Action("B", rank, i) for i in range(micro_batches)]
    return _weave(forwards, backwards, warm_up=ranks - 1 - rank)


def _interleaved(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """1F1B with two stages a rank: a round of micro-batches passes one stage, then the other."""
    forwards, backwards = _in_rounds(rank, ranks, micro_batches, "B")
    # two more forwards for each rank below: a forward has to get there, its backward back
    warm_up = micro_batches // _rounds(ranks, micro_batches) + 2 * (ranks - 1 - rank)
    return _weave(forwards, backwards, warm_up)


def _zero_bubble(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Interleaved, with backwards in halves: weights' gradients are computed where a rank waits."""
    forwards, backwards = _in_rounds(rank, ranks, micro_batches, "I")
    woven = _weave(
        forwards, backwards, micro_batches // _rounds(ranks, micro_batches) + ranks - 1 - rank
    )
    order, waiting = [], []
    for action in woven:
        order.append(action)
        if action.kind == "I":
            waiting.append(action._replace(kind="W"))
            if len(waiting) > rank:  # a later rank keeps more for the end, where it waits
                order.append(waiting.pop(0))
    return order + waiting


def _dualpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """DualPipeV's eight steps: micro-batches run down the V and up again, both at the same time."""
    down, up = stages_of_rank("dualpipe", rank, ranks)
    below, counts, waiting, order = ranks - 1 - rank, {}, [], []

    def add(kinds: str, *stages: int) -> None:
        for kind, stage in zip(kinds, stages, strict=True):
            if kind == "W":
                order.extend([waiting.pop(0)] if waiting else [])
                continue
            key = (kind == "F", stage)
            action = Action(kind, stage, counts.get(key, 0))
            counts[key] = action.micro_batch + 1
            order.append(action)
            if kind == "I":
                waiting.append(action._replace(kind="W"))

    add("F" * 2 * below, *[down] * 2 * below)
    for _ in range(rank + 1):
        add("FF", down, up)
    for _ in range(below):
        add("IWF", up, up, up)
    for _ in range(micro_batches - 2 * ranks + rank + 1):
        add("FBFB", down, up, up, down)
    for _ in range(below):
        add("BFB", up, up, down)
    # of the last backwards, the second half are cut in two: nobody waits for the weights' half
    whole = rank + 1
    kinds = ["B"] * whole + ["I"] * whole
    for pair in range(whole):
        add("".join(kinds[2 * pair : 2 * pair + 2]), up, down)
    for _ in range(below):
        add("WI", down, down)
    add("W" * whole, *[down] * whole)
    return order


_ORDERS = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
    "dualpipe": _dualpipe,
}


def _rounds(ranks: int, micro_batches: int) -> int:
    return max(1, micro_batches // ranks)


def _in_rounds(rank: int, ranks: int, micro_batches: int, backward: str) -> tuple[list, list]:
    """A rank's forwards and backwards: each round passes its first stage, then its second."""
    stages = stages_of_rank("interleaved", rank, ranks)
    forwards, backwards = [], []
    size = micro_batches // _rounds(ranks, micro_batches)
    for begin in range(0, micro_batches, size):
        batch = range(begin, begin + size)
        forwards += [Action("F", stage, i) for stage in stages for i in batch]
        backwards += [Action(backward, stage, i) for stage in reversed(stages) for i in batch]
    return forwards, backwards


def _weave(forwards: list, backwards: list, warm_up: int) -> list[Action]:
    """Some forwards, then forward and backward in turn, then the backwards that remain."""
    order, left = list(forwards[:warm_up]), list(backwards)
    for forward in forwards[warm_up:]:
        order += [forward, left.pop(0)]
    return order + left


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


def recorded(run, step: int | None = None) -> list[Span]:
    """What a run's ranks did in one step, from `ranks/<k>.actions.jsonl`.

    step: None takes the shortest one after the first, which also does what is done only once. Ranks
    of several hosts have clocks of their own: their times can't be compared.
    """
    files = sorted((Path(run.folder) / "ranks").glob("*.actions.jsonl"))
    if not files:
        raise FileNotFoundError(f"{run.folder} has no record of actions: it is no pipeline's run")
    steps: dict[int, list[Span]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            action = Action(row["action"], row["stage"], row["micro_batch"])
            span = Span(int(file.name.split(".")[0]), action, row["began"], row["ended"])
            steps.setdefault(row["step"], []).append(span)
    if step is None:
        step = min([n for n in steps if n] or steps, key=lambda n: makespan(steps[n]))
    begin = min(span.began for span in steps[step])
    return [s._replace(began=s.began - begin, ended=s.ended - begin) for s in steps[step]]


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
