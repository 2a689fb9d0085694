"""What is read from traces: waiting and sending, and phases."""

import gzip
import json

import pytest
from records import make_trace

from bootcamp.records import trace

REDUCE, GATHER = "gloo:all_reduce", "gloo:all_gather"
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write(path, calls, begins=0.0, base=0, category="user_annotation", compute=()):
    """A trace: calls and compute are (name, from, to) in ms since the step began, at `begins`."""
    kind = "cpu_op" if category != "kernel" else category
    spans = [("training_step", "user_annotation", 0, 20)]
    spans += [(name, category, start, end - start) for name, start, end in calls]
    spans += [(name, kind, start, end - start) for name, start, end in compute]
    text = json.dumps(make_trace(*spans, begins=begins) | {"baseTimeNanoseconds": base})
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w") as file:
        file.write(text)
    return trace.read_timeline(path)


def milliseconds(intervals):
    return [(start / 1e3, end / 1e3) for start, end in intervals]


@pytest.mark.parametrize(("name", "category"), [(REDUCE, "user_annotation"), (KERNEL, "kernel")])
def test_waiting_ends_when_the_last_rank_has_entered(tmp_path, name, category):
    """On the host's clock: rank 1 begins its step 1 ms later, and says so in its own base."""
    first = write(tmp_path / "0.json", [(name, 4, 10), (name, 12, 15)], category=category)
    second = write(
        tmp_path / "1.json.gz", [(name, 7, 9), (name, 11, 14)], 0.5, 500_000, category=category
    )
    steps = trace.separate_waiting({0: first, 1: second}, world=2)
    assert milliseconds(steps[0]["waiting"]) == [(4, 8)]
    assert milliseconds(steps[0]["sending"]) == [(8, 10), (12, 15)]
    assert milliseconds(steps[1]["waiting"]) == []
    assert milliseconds(steps[1]["sending"]) == [(7, 9), (11, 14)]
    assert steps[0]["separated"]
    for step in steps.values():
        both = trace.total_seconds(step["waiting"]) + trace.total_seconds(step["sending"])
        assert both == pytest.approx(trace.total_seconds(step["communicate"]))


def test_waiting_in_a_broadcast_is_not_for_ranks_that_come_later(tmp_path):
    root = write(tmp_path / "0.json", [("gloo:broadcast", 1, 2)])
    late = write(tmp_path / "1.json", [("gloo:broadcast", 5, 6)])
    steps = trace.separate_waiting({0: root, 1: late}, world=2)
    assert steps[1]["separated"]
    assert milliseconds(steps[1]["sending"]) == [(5, 6)]


@pytest.mark.parametrize(
    ("calls", "others"),
    [
        ([(REDUCE, 4, 8)], [(GATHER, 4, 8)]),
        ([(REDUCE, 4, 8)], [(REDUCE, 4, 8), (REDUCE, 9, 10)]),
        ([(REDUCE, 4, 8)], [(REDUCE, 9, 10)]),
        ([("gloo:send", 4, 8)], [("gloo:send", 4, 8)]),
        ([(REDUCE, 4, 8)], None),
    ],
    ids=["other collectives", "more of them", "a group without it", "messages", "no trace"],
)
def test_waiting_that_can_not_be_known_is_not_told(tmp_path, calls, others):
    steps = {0: write(tmp_path / "0.json", calls)}
    if others:
        steps[1] = write(tmp_path / "1.json", others)
    step = trace.separate_waiting(steps, world=2)[0]
    assert not step["separated"]
    assert (step["waiting"], step["sending"]) == ([], step["communicate"])


def test_step_on_a_gpu_is_that_of_its_stream(tmp_path):
    """The script has queued the step's kernels before most of them run."""
    path = tmp_path / "0.json"
    write(path, [(KERNEL, 6, 9)], category="kernel", compute=[("sgemm", 3, 7)])
    traced = json.loads(path.read_text())
    mark = {"name": "training_step", "cat": "gpu_user_annotation", "ts": 2e3, "dur": 8e3, "tid": 7}
    traced["traceEvents"].append({"ph": "X", **mark})
    path.write_text(json.dumps(traced))
    step = trace.read_timeline(path)
    assert step["seconds"] == pytest.approx(8e-3)
    assert milliseconds(step["compute"]) == [(1, 5)]
    assert milliseconds(step["communicate"]) == [(4, 7)]


def test_intervals_are_merged_intersected_and_subtracted():
    merged = trace.merge_intervals([(20, 21), (0, 5), (2, 12), (7, 7), (15, 15)])
    assert merged == [(0, 12), (20, 21)]
    assert trace.total_seconds(merged) == pytest.approx(13e-6)
    assert trace.total_seconds(trace.intersect_intervals(merged, [(5, 25)])) == pytest.approx(8e-6)
    others = [(2, 4), (8, 22), (40, 50)]
    assert trace.subtract_intervals([(0, 10), (20, 30)], others) == [(0, 2), (4, 8), (22, 30)]


# Phases of DataParallel


def annotate(*spans, **how) -> dict:
    """A trace of ranges of the script: (name, start, length) in milliseconds."""
    return make_trace(*((name, "user_annotation", *when) for name, *when in spans), **how)


def test_phases_are_read_in_order_without_what_is_no_phase(tmp_path):
    """A part within one, another thread's, an operator; two of one name are added up."""
    events = annotate(
        ("reduce", 9, 1),
        ("reduce", 11, 2),
        ("training_step", 0, 20),
        ("scatter", 1, 3),
        ("inside", 2, 1),
    )["traceEvents"]
    events += annotate(("gloo:all_reduce", 5, 1), thread=2)["traceEvents"]
    events += make_trace(("aten::mm", "cpu_op", 14, 1))["traceEvents"]
    path = tmp_path / "0.trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    phases = trace.time_phases(path)
    assert list(phases) == ["scatter", "reduce"]
    assert list(phases.values()) == pytest.approx([3e-3, 3e-3])
    path = tmp_path / "1.trace.json"
    path.write_text(json.dumps(annotate(("scatter", 0, 10))))
    with pytest.raises(ValueError, match="1.trace.json holds no whole step"):
        trace.time_phases(path)
