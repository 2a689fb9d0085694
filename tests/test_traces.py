"""Waiting and sending of a traced step, told apart by when the last rank entered a collective."""

import gzip
import json

import pytest
import reference

from bootcamp.records import trace

REDUCE, GATHER = "gloo:all_reduce", "gloo:all_gather"
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write(path, calls, begins=0.0, base=0, category="user_annotation", compute=()):
    """A trace: calls and compute are (name, from, to) in ms since the step began, at `begins`."""
    spans = [("training_step", "user_annotation", 0, 20)]
    spans += [(name, category, start, end) for name, start, end in calls]
    spans += [(name, "cpu_op" if category != "kernel" else category, *at) for name, *at in compute]
    events = [
        {"ph": "X", "name": n, "cat": c, "ts": 1e3 * (begins + a), "dur": 1e3 * (b - a), "tid": 1}
        for n, c, a, b in spans
    ]
    text = json.dumps({"traceEvents": events, "baseTimeNanoseconds": base})
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


def test_on_a_gpu_the_step_is_that_of_its_stream(tmp_path):
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


def test_only_sending_can_be_hidden(tmp_path):
    compute = [("aten::mm", 0, 6)]
    first = write(tmp_path / "0.json", [(REDUCE, 4, 8)], compute=compute)
    second = write(tmp_path / "1.json", [(REDUCE, 5, 8)], compute=compute)
    step = trace.separate_waiting({0: first, 1: second}, world=2)[0]
    assert trace.total_seconds(
        trace.intersect_intervals(step["compute"], step["communicate"])
    ) == pytest.approx(2e-3)
    assert trace.total_seconds(
        trace.intersect_intervals(step["compute"], step["sending"])
    ) == pytest.approx(1e-3)


def test_a_call_that_sends_beside_one_that_waits_is_sending(tmp_path):
    first = write(tmp_path / "0.json", [(REDUCE, 1, 6), (REDUCE, 2, 9)])
    second = write(tmp_path / "1.json", [(REDUCE, 3, 6), (REDUCE, 8, 9)])
    step = trace.separate_waiting({0: first, 1: second}, world=2)[0]
    assert milliseconds(step["waiting"]) == [(1, 3), (6, 8)]
    assert milliseconds(step["sending"]) == [(3, 6), (8, 9)]


@pytest.mark.parametrize(
    ("why", "calls"),
    [
        ("other collectives", [(GATHER, 4, 8)]),
        ("another number of them", [(REDUCE, 4, 8), (REDUCE, 9, 10)]),
        ("a group without it", [(REDUCE, 9, 10)]),
        ("no trace", None),
    ],
)
def test_what_can_not_be_known_is_not_told_apart(tmp_path, why, calls):
    steps = {0: write(tmp_path / "0.json", [(REDUCE, 4, 8)])}
    if calls:
        steps[1] = write(tmp_path / "1.json", calls)
    step = trace.separate_waiting(steps, world=2)[0]
    assert not step["separated"], why
    assert (step["waiting"], step["sending"]) == ([], step["communicate"])


def test_messages_from_one_rank_to_another_are_not_told_apart(tmp_path):
    calls = [("gloo:send", 4, 8)]
    steps = {rank: write(tmp_path / f"{rank}.json", calls) for rank in (0, 1)}
    assert not trace.separate_waiting(steps, world=2)[0]["separated"]


def test_a_rank_may_leave_a_broadcast_before_another_has_entered(tmp_path):
    root = write(tmp_path / "0.json", [("gloo:broadcast", 1, 2)])
    late = write(tmp_path / "1.json", [("gloo:broadcast", 5, 6)])
    steps = trace.separate_waiting({0: root, 1: late}, world=2)
    assert steps[1]["separated"]
    assert milliseconds(steps[1]["sending"]) == [(5, 6)]


def test_a_recorded_trace_is_smaller_and_tells_the_same(tmp_path):
    compute = [("aten::linear", 0, 6), ("aten::mm", 1, 5), ("aten::add", 7, 8)]
    calls = {0: [(REDUCE, 4, 8)], 1: [(REDUCE, 5, 8)]}
    whole, slimmed = {}, {}
    for rank in (0, 1):
        path = tmp_path / f"{rank}.json"
        whole[rank] = write(path, calls[rank], 0.5 * rank, 7_000, compute=compute)
        slim = reference.slim_trace(json.loads(path.read_text()))
        assert "aten::mm" not in [event["name"] for event in slim["traceEvents"]]
        path.write_text(json.dumps(slim))
        slimmed[rank] = trace.read_timeline(path)
    for rank in (0, 1):
        step, same = (trace.separate_waiting(steps, world=2)[rank] for steps in (whole, slimmed))
        assert step["separated"]
        for kind in ("compute", "communicate", "waiting", "sending"):
            assert milliseconds(step[kind]) == list(map(pytest.approx, milliseconds(same[kind])))
        assert step["began"] == pytest.approx(same["began"])


def test_intervals_without_others():
    assert trace.subtract_intervals([(0, 10), (20, 30)], [(2, 4), (8, 22), (40, 50)]) == [
        (0, 2),
        (4, 8),
        (22, 30),
    ]
    assert trace.subtract_intervals([(0, 10)], []) == [(0, 10)]
    assert trace.subtract_intervals([(3, 4)], [(0, 10)]) == []
