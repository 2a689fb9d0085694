"""Lesson 04d: evaluation over ranks, and who is late. What is proved equal: test_equality.py."""

import json

import pytest
from trained import trained

from bootcamp.experiments import equality
from bootcamp.launcher import hang
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp_lessons import ddp_practice
from bootcamp_lessons.excerpts import parse_printed

SNIPPETS = SRC / "snippets"
FLAGS = {name: value for name, value in ddp_practice.FLAGS.items() if name != "quiet"}


def test_compiled_and_wrapped_model_is_one_graph():
    flags = {**FLAGS, "model": "mlp", "optimizer": "sgd", "backend": "aot_eager"}
    run = trained(ddp_practice.make_compiled_script(), 2, **flags)
    assert "graphs: 1" in run.output(0)


def test_baseline_is_clipped():
    clipped = ddp_practice.launch_baseline(trained, optimizer="sgd")
    proof = equality.compare(clipped, equality.baseline(optimizer="sgd", **FLAGS))
    assert "final parameters apart" in proof.failed[-1]["compared"]


def test_evaluation_by_sums_in_one_order_is_that_of_one_process():
    runs = [trained(SNIPPETS / "ddp_evaluate.py", ranks) for ranks in (1, 2, 3)]
    alone = {row["way"]: row for row in parse_printed(runs[0])}["sums"]
    for run in runs:
        for row in parse_printed(run):
            same = (row["loss"], row["accuracy"]) == (alone["loss"], alone["accuracy"])
            assert same == (row["way"] == "sums" or row["way"][:6] + str(row["ranks"]) == "padded1")


def said(tmp_path, own):
    """A run whose ranks printed so many seconds of own work, in steps of 0.1 s."""
    (tmp_path / "ranks").mkdir(parents=True)
    for rank, steps in enumerate(own):
        row = {"rank": rank, "own": steps, "rest": [0.1 - seconds for seconds in steps]}
        (tmp_path / "ranks" / f"{rank}.out").write_text(json.dumps(row))
    (tmp_path / "config.json").write_text(json.dumps({"processes": len(own)}))
    return Run(tmp_path)


@pytest.mark.parametrize(
    ("own", "late"),
    [
        ([[0.010] * 8, [0.013] * 8], 1),
        ([[0.0130] * 8, [0.0100] * 8, [0.0102] * 8], 0),
        ([[0.010] * 8, [0.0105] * 8], None),
        ([[0.010] * 8, [0.010] * 5 + [0.080] * 3], None),  # disturbed now and then, not late
    ],
)
def test_late_rank_is_the_one_with_the_longest_own_work(tmp_path, own, late):
    assert ddp_practice.find_straggler(said(tmp_path, own)) == late


def test_rank_that_never_came_is_named_by_the_others_collectives():
    found = hang.read(ddp_practice.launch_stuck(1, ranks=2))
    assert (found.kind, found.ranks) == ("missing", (1,))
