"""The pictures of notebook 04b: drawn from made-up records, and true where they can be wrong."""

import json

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

from matplotlib.patches import FancyArrowPatch

from bootcamp import machine
from bootcamp.drawing import style
from bootcamp.records.runs import Run
from bootcamp_lessons.diagrams import ddp

STEPS = [(0, step) for step in range(8)] + [(1, step) for step in range(5, 12)]


@pytest.fixture
def make(tmp_path):
    """make("name", buckets=3) -> a run that recorded STEPS and a trace with so many all-reduces."""
    return lambda name, buckets=1: _write(tmp_path / name, buckets)


def _write(folder, buckets: int) -> Run:
    (folder / "ranks").mkdir(parents=True)
    config = {
        "strategy": "ddp_options",
        "device": "cpu",
        "processes": 2,
        "cores_per_rank": 1,
        "machine": {"cpu": machine.cpu_name(), "cores": 8, "gpus": []},
        "versions": {"torch": "2.99.0"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    rows = [
        {"step": s, "attempt": a, "loss": 1.0, "seconds": 0.1, "samples": 32, "tokens": 64}
        for a, s in STEPS
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text('{"status": "ok"}')
    step = ("training_step", "user_annotation", 0, 10)
    spans = [step, ("aten::mm", "cpu_op", 1, 4), ("gloo:all_reduce", "user_annotation", 4, 3)]
    spans += [("c10d::allreduce_", "cpu_op", 4, 1)] * buckets
    events = [
        {"ph": "X", "name": name, "cat": cat, "ts": 1e3 * start, "dur": 1e3 * length}
        for name, cat, start, length in spans
    ]
    (folder / "ranks" / "0.trace.json").write_text(json.dumps({"traceEvents": events}))
    return Run(folder)


def test_every_picture_is_drawn_and_says_what_it_shows(make):
    drawn = (
        ddp.way_of_a_bucket(),
        ddp.averages(),
        ddp.two_hosts(),
        ddp.ring_and_tree(),
        ddp.bucket_sweep([make("a", 1), make("b", 1), make("c", 6)]),
        ddp.attempts(make("d"), saved_every=5),
    )
    for picture in drawn:
        assert len(picture.alt) > 80
        assert style.png(picture).startswith(b"\x89PNG")


def test_the_sweep_counts_buckets_and_what_overlaps(make):
    run = make("run", buckets=6)
    assert ddp.count_buckets(run) == 6
    assert ddp._measure_overlap([run]) == pytest.approx((3.0, 1.0))
    assert "6 buckets 100 to 100 ms" in ddp.bucket_sweep([run]).alt


def test_ticks_of_the_sweep_keep_apart(make):
    figure = ddp.bucket_sweep([make("a", 17), make("b", 20), make("c", 1)])
    assert list(figure.axes[0].get_xticks()) == [1, 17]


def test_the_attempts_tell_which_steps_were_trained_twice(make):
    says = ddp.attempts(make("run"), saved_every=5).alt
    assert "attempt 0 steps 0 to 7, 0 of them again" in says
    assert "attempt 1 steps 5 to 11, 3 of them again" in says


def test_the_tree_that_is_drawn_is_one():
    """One arrow from each rank but the first to its parent; the ring has one more, to its begin."""
    (axes,) = ddp.ring_and_tree().axes
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == (7 - 1) + 1 + (7 - 1)
    assert "2 levels up, 2 down" in [text.get_text() for text in axes.texts]
