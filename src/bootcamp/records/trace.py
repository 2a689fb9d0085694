"""When a rank computed, waited and sent, read from the traces of one step.

The trace is torch.profiler's, in Chrome's trace event format; times are in microseconds since the
step began.
"""

import gzip
import json
import re
from pathlib import Path
from typing import NamedTuple

COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
ONE_TO_ONE = re.compile("send|recv", re.IGNORECASE)
FROM_OR_TO_ONE = re.compile("gloo:(broadcast|reduce|gather|scatter)$|Kernel_(Broadcast|Reduce)_")
CLOCK_MICROSECONDS = 200  # that the clocks of two ranks on one host may differ by


class _Trace(NamedTuple):
    """events: those with a length, as in the file, whose times begin at base. kernels: a GPU's.

    step: the traced step, on a GPU as its stream worked on it. queued: as the script ran it.
    """

    events: list[dict]
    kernels: list[dict]
    step: dict
    queued: dict
    base: float


def _load(path: Path) -> _Trace:
    """Read a trace, packed or not. Raises ValueError where it holds no whole step."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        trace = json.load(file)
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("dur", 0) > 0]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    steps = {event.get("cat"): event for event in events if event["name"] == "training_step"}
    if "user_annotation" not in steps:
        raise ValueError(f"{path.name} holds no whole step: was the run ended while it was traced?")
    queued = steps["user_annotation"]
    step = steps.get("gpu_user_annotation", queued) if kernels else queued
    return _Trace(events, kernels, step, queued, trace.get("baseTimeNanoseconds", 0) / 1e3)


def read(path: Path) -> dict:
    """The intervals of one traced step: {"compute": [(start, end)], "communicate": [...]}, in µs.

    Compute is the union of the operators on the thread that runs the script (on a GPU: of its
    kernels). Communicate is what gloo's threads or NCCL's kernels were busy with, which includes
    their waiting for the other ranks; `calls` has each of them as (name, start, end). On a GPU the
    step is what its stream did, as in the record's `seconds`: the script runs ahead of it.
    `began` is when the step began, in µs of a clock that all processes of a host share.
    """
    trace = _load(path)
    begin, calls, compute = trace.step["ts"], [], []
    for event in sorted(trace.kernels or trace.events, key=lambda event: event["ts"]):
        name, start, end = event["name"], event["ts"] - begin, event["ts"] + event["dur"] - begin
        if name.startswith(COMMUNICATION):
            calls.append((name, start, end))
        elif trace.kernels or (event.get("cat") == "cpu_op" and not _waits(name)):
            compute.append((start, end))
    return {
        "seconds": trace.step["dur"] / 1e6,
        "compute": merge(compute),
        "communicate": merge([span for _, *span in calls]),
        "calls": calls,
        "began": trace.base + begin,
    }


def _waits(name: str) -> bool:
    """Whether an operator of torch.distributed on the script's thread queues work or waits."""
    return name.startswith(("c10d::", "record_param_comms"))


def separate(steps: dict[int, dict], world: int) -> dict[int, dict]:
    """The ranks' steps with `waiting` and `sending`, which together are `communicate`.

    A rank waits in a collective until the last rank has entered it. The k-th collectives of all
    ranks belong together. `apart` is False, and sending is all of it, where that can't be known:
    a trace is missing, ranks called different collectives, messages went from one rank to
    another, or a rank left a collective before another had entered it, as in groups of ranks.
    """
    entered = _last_entered(list(steps.values()), world)
    return {rank: step | _parts(step, entered) for rank, step in steps.items()}


def _last_entered(steps: list[dict], world: int) -> list[float] | None:
    """When the last rank entered each collective, on the host's clock; None if it is unknown."""
    names = {tuple(name for name, _, _ in step["calls"]) for step in steps}
    if len(steps) < world or len(names) != 1 or any(map(ONE_TO_ONE.search, min(names))):
        return None
    entered = []
    for calls in zip(*(step["calls"] for step in steps), strict=True):
        both = list(zip(calls, steps, strict=True))
        last = max(step["began"] + start for (_, start, _), step in both)
        left = min(step["began"] + end for (_, _, end), step in both)
        if left < last - CLOCK_MICROSECONDS and not FROM_OR_TO_ONE.search(calls[0][0]):
            return None
        entered.append(last)
    return entered


def _parts(step: dict, entered: list[float] | None) -> dict:
    """A step's waiting and sending; where some calls overlap, sending hides waiting."""
    if entered is None:
        return {"waiting": [], "sending": step["communicate"], "apart": False}
    waits, sends = [], []
    for (_, start, end), last in zip(step["calls"], entered, strict=True):
        met = min(max(start, last - step["began"]), end)
        waits.append((start, met))
        sends.append((met, end))
    sending = merge(sends)
    return {"waiting": without(merge(waits), sending), "sending": sending, "apart": True}


def phases(path: Path) -> dict[str, float]:
    """Seconds of each named part of one traced step, in the order in which they began.

    A part is what the script puts into `with torch.profiler.record_function("name"):`; torch's
    optimizers name theirs too. Parts with one name are added up; one inside another counts to the
    outer one alone. Raises ValueError where the trace holds no whole step.
    """
    trace, seconds = _load(path), {}
    end = trace.queued["ts"]
    for event in sorted(trace.events, key=lambda event: (event["ts"], -event["dur"])):
        in_script = (event.get("cat"), event["tid"]) == ("user_annotation", trace.queued["tid"])
        if in_script and event is not trace.queued and event["ts"] >= end:
            end = event["ts"] + event["dur"]
            name = event["name"].partition("#")[0]  # "Optimizer.step#AdamW.step"
            seconds[name] = seconds.get(name, 0.0) + event["dur"] / 1e6
    return seconds


def operators(path: Path) -> dict[str, tuple[int, float]]:
    """The operators of one traced step: {name: (calls, seconds of its own)}, the longest first.

    An operator's own time is without that of the operators that it calls. On a GPU these are its
    kernels. Raises ValueError where the trace holds no whole step.
    """
    trace = _load(path)
    begin, end = trace.step["ts"], trace.step["ts"] + trace.step["dur"]
    events = trace.kernels or [event for event in trace.events if event.get("cat") == "cpu_op"]
    found, running = {}, {}  # by thread: the operators that have begun, innermost last
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if not begin <= event["ts"] < end:
            continue
        outer = running.setdefault(event["tid"], [])
        while outer and outer[-1]["ts"] + outer[-1]["dur"] <= event["ts"]:
            outer.pop()
        if outer and not trace.kernels:
            calls, seconds = found[outer[-1]["name"]]
            found[outer[-1]["name"]] = (calls, seconds - event["dur"] / 1e6)
        calls, seconds = found.get(event["name"], (0, 0.0))
        found[event["name"]] = (calls + 1, seconds + event["dur"] / 1e6)
        outer.append(event)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def merge(intervals) -> list[tuple[float, float]]:
    """The union of intervals as disjoint ones in order; empty ones are left out."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def total_seconds(intervals: list[tuple[float, float]]) -> float:
    """The length of disjoint intervals together, in seconds."""
    return sum(end - start for start, end in intervals) / 1e6


def overlaps(a, b) -> list[tuple[float, float]]:
    """The intervals in which both lists are busy."""
    both = [(max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b]
    return [(start, end) for start, end in both if start < end]


def without(intervals, others) -> list[tuple[float, float]]:
    """The parts of disjoint intervals in which no other is busy; both lists are in order."""
    rest = []
    for start, end in intervals:
        for low, high in others:
            if high <= start or end <= low:
                continue
            if start < low:
                rest.append((start, low))
            start = high
        if start < end:
            rest.append((start, end))
    return rest
