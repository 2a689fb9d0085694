"""When a rank computed, waited and sent, read from the traces of one step.

The trace is torch.profiler's, in Chrome's trace event format; times are in microseconds since the
step began.
"""

import gzip
import json
import re
from pathlib import Path

COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
ON_GPU = "gpu_user_annotation"  # a part of the script, when its kernels ran
ONE_TO_ONE = re.compile("send|recv", re.IGNORECASE)
FROM_OR_TO_ONE = re.compile("gloo:(broadcast|reduce|gather|scatter)$|Kernel_(Broadcast|Reduce)_")
CLOCK_MICROSECONDS = 200  # that the clocks of two ranks on one host may differ by


def read(path: Path) -> dict:
    """The intervals of one traced step: {"compute": [(start, end)], "communicate": [...]}, in µs.

    Compute is the union of the operators on the thread that runs the script (on a GPU: of its
    kernels). Communicate is what gloo's threads or NCCL's kernels were busy with, which includes
    their waiting for the other ranks; `calls` has each of them as (name, start, end). On a GPU the
    step is what its stream did, as in the record's `seconds`: the script runs ahead of it.
    `began` is when the step began, in µs of a clock that all processes of a host share.
    """
    complete, base = _complete_events(path)
    on_gpu = [event for event in complete if event.get("cat") == "kernel"]
    marks = _marks(complete, ON_GPU) if on_gpu else []
    marks = marks or _marks(complete, "user_annotation")
    begin, length = (marks[0]["ts"], marks[0]["dur"]) if marks else (complete[0]["ts"], 0)
    busy = on_gpu or [e for e in complete if e.get("cat") == "cpu_op" and not _waits(e)]
    communicate = [e for e in (on_gpu or complete) if _communicates(e)]
    communicate.sort(key=lambda event: event["ts"])
    compute = [e for e in busy if not _communicates(e)]
    return {
        "seconds": length / 1e6,
        "compute": merge(compute, begin),
        "communicate": merge(communicate, begin),
        "calls": [(e["name"], e["ts"] - begin, e["ts"] + e["dur"] - begin) for e in communicate],
        "began": base + begin,
    }


def separate(steps: dict[int, dict], world: int) -> dict[int, dict]:
    """The ranks' steps with `waiting` and `sending`, which together are `communicate`.

    A rank waits in a collective until the last rank has entered it. The k-th collectives of all
    ranks belong together. `apart` is False, and sending is all of it, where that can't be known:
    a trace is missing, ranks called different collectives, messages went from one rank to
    another, or a rank left a collective before another had entered it, as in groups of ranks.
    """
    entered = _last_entered(steps, world)
    return {rank: step | _parts(step, entered) for rank, step in steps.items()}


def _last_entered(steps: dict[int, dict], world: int) -> list[float] | None:
    """When the last rank entered each collective, on the host's clock; None if it is unknown."""
    names = {tuple(name for name, _, _ in step["calls"]) for step in steps.values()}
    if len(steps) < world or len(names) != 1 or any(map(ONE_TO_ONE.search, min(names))):
        return None
    calls = [
        [(step["began"] + a, step["began"] + b) for _, a, b in step["calls"]]
        for step in steps.values()
    ]
    entered = []
    for name, *spans in zip(min(names), *calls, strict=True):
        last, left = max(start for start, _ in spans), min(end for _, end in spans)
        if left < last - CLOCK_MICROSECONDS and not FROM_OR_TO_ONE.search(name):
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
        waits.append({"ts": start, "dur": met - start})
        sends.append({"ts": met, "dur": end - met})
    sending = merge([span for span in sends if span["dur"] > 0])
    waiting = without(merge([span for span in waits if span["dur"] > 0]), sending)
    return {"waiting": waiting, "sending": sending, "apart": True}


def phases(path: Path) -> dict[str, float]:
    """Seconds of each named part of one traced step, in the order in which they began.

    A part is what the script puts into `with torch.profiler.record_function("name"):`; torch's
    optimizers name theirs too. Parts with one name are added up; one inside another counts to the
    outer one alone. Raises ValueError where the trace holds no whole step.
    """
    complete, _ = _complete_events(path)
    steps = _marks(complete, "user_annotation")
    if not steps:
        raise ValueError(f"{path.name} holds no whole step: was the run ended while it was traced?")
    step, seconds = steps[0], {}
    named = [e for e in complete if e.get("cat") == "user_annotation" and e["tid"] == step["tid"]]
    end = step["ts"]
    for event in sorted(named, key=lambda event: (event["ts"], -event["dur"])):
        if event is step or event["ts"] < end:
            continue
        end = event["ts"] + event["dur"]
        name = event["name"].partition("#")[0]  # "Optimizer.step#AdamW.step"
        seconds[name] = seconds.get(name, 0.0) + event["dur"] / 1e6
    return seconds


def operators(path: Path) -> dict[str, tuple[int, float]]:
    """The operators of one traced step: {name: (calls, seconds of its own)}, the longest first.

    An operator's own time is without that of the operators that it calls. On a GPU these are its
    kernels. Raises ValueError where the trace holds no whole step.
    """
    complete, _ = _complete_events(path)
    kernels = [event for event in complete if event.get("cat") == "kernel"]
    steps = _marks(complete, ON_GPU) if kernels else _marks(complete, "user_annotation")
    if not steps:
        raise ValueError(f"{path.name} holds no whole step: was the run ended while it was traced?")
    begin, end = steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]
    events = kernels or [event for event in complete if event.get("cat") == "cpu_op"]
    found, running = {}, {}  # by thread: the operators that have begun, innermost last
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if not begin <= event["ts"] < end:
            continue
        outer = running.setdefault(event["tid"], [])
        while outer and outer[-1]["ts"] + outer[-1]["dur"] <= event["ts"]:
            outer.pop()
        if outer and not kernels:
            caller = outer[-1]["name"]
            found[caller] = (found[caller][0], found[caller][1] - event["dur"] / 1e6)
        calls, seconds = found.get(event["name"], (0, 0.0))
        found[event["name"]] = (calls + 1, seconds + event["dur"] / 1e6)
        outer.append(event)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _complete_events(path: Path) -> tuple[list[dict], float]:
    """The events of a trace, packed or not, that have a begin and a length; µs that they are from.

    Times in a trace are from a moment that torch has chosen and names in nanoseconds.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        trace = json.load(file)
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("dur", 0) > 0]
    return events, trace.get("baseTimeNanoseconds", 0) / 1e3


def _marks(events: list[dict], category: str) -> list[dict]:
    """The traced step, on the script's thread or, as a GPU worked on it, in the GPU's stream."""
    return [e for e in events if e["name"] == "training_step" and e.get("cat") == category]


def _communicates(event: dict) -> bool:
    return event["name"].startswith(COMMUNICATION)


def _waits(event: dict) -> bool:
    """An operator of torch.distributed on the script's thread queues work or waits for it."""
    return event["name"].startswith(("c10d::", "record_param_comms"))


def merge(events: list[dict], begin: float = 0.0) -> list[tuple[float, float]]:
    """The union of the events' times as disjoint intervals in order, relative to `begin`."""
    intervals = []
    for event in sorted(events, key=lambda event: event["ts"]):
        start, end = event["ts"] - begin, event["ts"] + event["dur"] - begin
        if intervals and start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(end, intervals[-1][1]))
        else:
            intervals.append((start, end))
    return intervals


def total_seconds(intervals: list[tuple[float, float]]) -> float:
    """The length of disjoint intervals together, in seconds."""
    return sum(end - start for start, end in intervals) / 1e6


def overlap_seconds(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """How long both lists of intervals are busy at once, in seconds."""
    return total_seconds(overlaps(a, b))


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
