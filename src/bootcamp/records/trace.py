"""When a rank computed and when it communicated, read from the trace of one step.

Standard library only. The trace is torch.profiler's, in Chrome's trace event format; times are in
microseconds since the step began.
"""

import gzip
import json
from pathlib import Path

COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


def read(path: Path) -> dict:
    """The intervals of one traced step: {"compute": [(start, end)], "communicate": [...]}, in µs.

    Compute is the union of the operators on the thread that runs the script (on a GPU: of its
    kernels). Communicate is what gloo's threads or NCCL's kernels were busy with, which includes
    their waiting for the other ranks.
    """
    complete = _complete_events(path)
    on_gpu = [event for event in complete if event.get("cat") == "kernel"]
    marks = [event for event in complete if event["name"] == "training_step"]
    begin, length = (marks[0]["ts"], marks[0]["dur"]) if marks else (complete[0]["ts"], 0)
    busy = on_gpu or [e for e in complete if e.get("cat") == "cpu_op" and not _waits(e)]
    communicate = [e for e in (on_gpu or complete) if _communicates(e)]
    compute = [e for e in busy if not _communicates(e)]
    return {
        "seconds": length / 1e6,
        "compute": merge(compute, begin),
        "communicate": merge(communicate, begin),
    }


def phases(path: Path) -> dict[str, float]:
    """Seconds of each named part of one traced step, in the order in which they began.

    A part is what the script puts into `with torch.profiler.record_function("name"):`; torch's
    optimizers name theirs too. Parts with one name are added up; one inside another counts to the
    outer one alone. Raises ValueError where the trace holds no whole step.
    """
    complete = _complete_events(path)
    steps = [event for event in complete if event["name"] == "training_step"]
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


def _complete_events(path: Path) -> list[dict]:
    """The events of a trace, packed or not, that have a begin and a length."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event.get("dur", 0) > 0]


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
