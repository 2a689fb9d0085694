"""The order in which each rank of a pipeline computes: `plan("1f1b", ranks=4, micro_batches=8)`.

The orders are those of GPipe (Huang et al., 2019, arXiv:1811.06965), 1F1B and interleaved 1F1B
(Narayanan et al., 2021, arXiv:2104.04473), zero bubble (Qi et al., 2023, arXiv:2401.10241, its
ZB1P and its ZB-V) and DualPipeV (DeepSeek-AI, 2024, arXiv:2412.19437, and its DualPipe repository),
each as torch.distributed.pipelining carries it out.
"""

from typing import NamedTuple

# {schedule: stages of a rank}
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "zb-v": 2, "dualpipe": 2}
SCHEDULES = tuple(CHUNKS)
LIKE_A_V = ("zb-v", "dualpipe")


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


class Impossible(ValueError):
    """A plan that can't be made or can't be carried out. The text says why."""


def least_micro_batches(schedule: str, ranks: int) -> int:
    """How many micro-batches torch's schedule asks for."""
    return {"1f1b": ranks, "dualpipe": 2 * ranks}.get(schedule, 1)


def stages_of_rank(schedule: str, rank: int, ranks: int) -> list[int]:
    """The stages that a rank holds: in turn, or like a V with the first and the last on rank 0."""
    if schedule in LIKE_A_V:
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, CHUNKS[schedule] * ranks, ranks))


def borders(schedule: str, rank: int, ranks: int) -> int:
    """Count the borders between a stage of this rank and one of another."""
    mine, last = stages_of_rank(schedule, rank, ranks), CHUNKS[schedule] * ranks - 1
    near = [j for i in mine for j in (i - 1, i + 1) if 0 <= j <= last]
    return sum(j not in mine for j in near)


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


def _zb_v(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """ZB-V: forward, I and W in turn on both legs of a V; only a rank's last W wait for the end."""
    down, up = stages_of_rank("zb-v", rank, ranks)
    least = max(2 * ranks - 1, micro_batches)  # torch plans with as many, and leaves some out
    counts, order = {}, []

    def add(*actions: tuple[str, int]) -> None:
        for kind, stage in actions:
            i = counts[kind, stage] = counts.get((kind, stage), -1) + 1
            if i < micro_batches:
                order.append(Action(kind, stage, i))

    add(*[("F", down)] * (2 * (ranks - rank) - 1))
    add(*[("F", up), ("F", down)] * rank)
    add(*[("F", up), ("I", up), ("W", up)] * (ranks - rank))
    for step in range(least - ranks):
        new = [("F", down)] if step < least - 2 * ranks + rank + 1 else []
        add(*new, ("I", down), ("W", down), ("F", up), ("I", up), ("W", up))
    add(*[("I", down), ("I", up)] * rank)
    add(*[("I", down), ("W", down)] * (ranks - rank))
    add(*[("W", up)] * rank, *[("W", down)] * rank)
    return order


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
    "zb-v": _zb_v,
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
