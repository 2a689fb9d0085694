"""Timelines of one traced step: when each rank computed, waited and sent, and which operators ran.

The files are torch.profiler's, in Chrome's trace event format. Intervals are pairs (start, end) in
microseconds since the step began.
"""

import gzip
import json
import re
from collections import Counter
from itertools import chain
from math import inf
from pathlib import Path
from typing import NamedTuple

COMMUNICATION = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
DISTRIBUTED = ("c10d::", "record_param_comms")  # operators that only queue or wait
ONE_TO_ONE = re.compile("send|recv", re.IGNORECASE)
FROM_OR_TO_ONE = re.compile("gloo:(broadcast|reduce|gather|scatter)$|Kernel_(Broadcast|Reduce)_")
CLOCK_MICROSECONDS = 200  # the largest difference between the clocks of two ranks on one host

Intervals = list[tuple[float, float]]


class _Trace(NamedTuple):
    """The events of a file that have a length, in order."""

    events: list[dict]
    kernels: list[dict]  # a GPU's
    step: dict  # the traced step, on a GPU as its stream worked on it
    queued: dict  # the step as the script ran it
    base: float  # where their times begin, in microseconds of the host's clock


def _load(path: Path) -> _Trace:
    """Read a trace, compressed or not. Raises ValueError where it holds no whole step."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        trace = json.load(file)
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("dur", 0) > 0]
    for event in events:
        event["end"] = event["ts"] + event["dur"]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))  # an outer event before its inner
    kernels = [event for event in events if event.get("cat") == "kernel"]
    steps = {event.get("cat"): event for event in events if event["name"] == "training_step"}
    if "user_annotation" not in steps:
        raise ValueError(f"{path.name} holds no whole step: was the run ended while it was traced?")
    queued = steps["user_annotation"]
    step = steps.get("gpu_user_annotation", queued) if kernels else queued
    return _Trace(events, kernels, step, queued, trace.get("baseTimeNanoseconds", 0) / 1e3)


def read_timeline(path: Path) -> dict:
    """Read a rank's timeline: {"compute": intervals, "communicate": intervals, ...}.

    compute: the union of the operators on the script's thread; on a GPU, of its kernels.
    communicate: the union of what gloo's threads or NCCL's kernels did, waiting for other ranks
        included. calls: each of these as (name, start, end).
    seconds: the step's length; on a GPU that of its stream, since the script runs ahead of it.
    began: when the step began, in µs of a clock that all processes of a host share.
    """
    trace = _load(path)
    begin, calls, compute = trace.step["ts"], [], []
    for event in trace.kernels or trace.events:
        name, start, end = event["name"], event["ts"] - begin, event["end"] - begin
        if name.startswith(COMMUNICATION):
            calls.append((name, start, end))
        elif trace.kernels or (event.get("cat") == "cpu_op" and not name.startswith(DISTRIBUTED)):
            compute.append((start, end))
    return {
        "seconds": trace.step["dur"] / 1e6,
        "compute": merge_intervals(compute),
        "communicate": merge_intervals(span for _, *span in calls),
        "calls": calls,
        "began": trace.base + begin,
    }


def separate_waiting(timelines: dict[int, dict], world: int) -> dict[int, dict]:
    """Add `waiting` and `sending` to the ranks' timelines; together they are `communicate`.

    A rank waits in a collective until the last rank has entered it; the k-th collectives of all
    ranks belong together. Where calls overlap, sending counts. `separated` is False, and sending is
    all of it, where that is unknown: a trace is missing, messages went from one rank to another,
    ranks called different collectives, or one left before another had entered, as in groups.
    """
    entered = _find_last_entries(list(timelines.values()), world)
    separated = {}
    for rank, timeline in timelines.items():
        waits, sends = [], []
        for index, (_, start, end) in enumerate(timeline["calls"]):
            met = min(max(start, entered[index] - timeline["began"]), end) if entered else start
            waits.append((start, met))
            sends.append((met, end))
        sending = merge_intervals(sends)
        waiting = subtract_intervals(merge_intervals(waits), sending)
        split = {"waiting": waiting, "sending": sending, "separated": entered is not None}
        separated[rank] = timeline | split
    return separated


def _find_last_entries(timelines: list[dict], world: int) -> list[float] | None:
    """Find when the last rank entered each collective, on the host's clock; None if unknown."""
    names = {tuple(name for name, _, _ in each["calls"]) for each in timelines}
    if len(timelines) < world or len(names) != 1 or any(map(ONE_TO_ONE.search, min(names))):
        return None
    entered = []
    for calls in zip(*(each["calls"] for each in timelines), strict=True):
        pairs = list(zip(calls, timelines, strict=True))
        last = max(each["began"] + start for (_, start, _), each in pairs)
        left = min(each["began"] + end for (_, _, end), each in pairs)
        if left < last - CLOCK_MICROSECONDS and not FROM_OR_TO_ONE.search(calls[0][0]):
            return None
        entered.append(last)
    return entered


def time_phases(path: Path) -> dict[str, float]:
    """Return the seconds of each named part of the step, in the order in which they began.

    A part is a block `with torch.profiler.record_function("name"):`; torch's optimizers name theirs
    too. Parts with one name are added up; a part inside another counts to the outer one alone.
    Raises ValueError where the trace holds no whole step.
    """
    trace, seconds = _load(path), Counter()
    end, thread = trace.queued["ts"], trace.queued["tid"]
    for event in trace.events:
        named = event.get("cat") == "user_annotation" and event is not trace.queued
        if named and event["tid"] == thread and event["ts"] >= end:
            end = event["end"]
            seconds[event["name"].partition("#")[0]] += event["dur"] / 1e6  # Optimizer.step#AdamW
    return dict(seconds)


def time_operators(path: Path) -> dict[str, tuple[int, float]]:
    """Return each operator of the step as {name: (calls, seconds of its own)}, the longest first.

    An operator's own time is without that of the operators that it calls. On a GPU these are its
    kernels. Raises ValueError where the trace holds no whole step.
    """
    trace = _load(path)
    calls, own, running = Counter(), Counter(), {}
    for event in trace.kernels or trace.events:
        operator = event.get("cat") in ("kernel", "cpu_op")
        if not operator or not trace.step["ts"] <= event["ts"] < trace.step["end"]:
            continue
        callers = running.setdefault(event["tid"], [])  # those that have begun, innermost last
        while callers and callers[-1]["end"] <= event["ts"]:
            callers.pop()
        if callers and not trace.kernels:
            own[callers[-1]["name"]] -= event["dur"]
        calls[event["name"]] += 1
        own[event["name"]] += event["dur"]
        callers.append(event)
    return {name: (calls[name], microseconds / 1e6) for name, microseconds in own.most_common()}


def merge_intervals(intervals) -> Intervals:
    """Return the union of intervals as disjoint ones in order; empty ones are left out."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def total_seconds(intervals: Intervals) -> float:
    """Add up the lengths of disjoint intervals, in seconds."""
    return sum(end - start for start, end in intervals) / 1e6


def intersect_intervals(a: Intervals, b: Intervals) -> Intervals:
    """Return the intervals that lie in both lists, each of them disjoint and in order."""
    both = [(max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b]
    return [(start, end) for start, end in both if start < end]


def subtract_intervals(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts of intervals that lie in no other; both lists disjoint and in order."""
    edges = [-inf, *chain(*others), inf]
    return intersect_intervals(intervals, list(zip(edges[::2], edges[1::2], strict=True)))
