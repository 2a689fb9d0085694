"""Lesson 08c: what ranks of three axes hold and send, and the recorded curves."""

import pytest
from trained import trained

from bootcamp.experiments import equality
from bootcamp_lessons import three_axes
from bootcamp_lessons.labs import silent_bugs

FLAGS = {"steps": 3, "global_batch": 24, "micro_batches": 2, "optimizer": "sgd"}


def test_eight_ranks_hold_and_send_what_the_formulas_say():
    """A run that test_equality.py proves."""
    run = trained("3d", 8, **FLAGS)
    table = three_axes.compare_ranks(run)
    counted, formula = three_axes.find_largest_difference(table, "parameters")
    assert counted == pytest.approx(formula, rel=1e-6)
    counted, formula = three_axes.find_largest_difference(table, "sent")
    assert counted is None or counted == pytest.approx(formula, rel=0.05)
    table.rows[3]["parameters kB, counted"] *= 2
    counted, formula = three_axes.find_largest_difference(table, "parameters")
    assert counted == pytest.approx(2 * formula), "a count that is off is the furthest"
    places = [(row["pipeline"], row["data"], row["tensor"]) for row in table.rows]
    assert places == [(p, d, t) for p in (0, 1) for d in (0, 1) for t in (0, 1)]


def test_formulas_of_one_rank_are_the_models():
    mesh = {"pipeline": 1, "data": 1, "tensor": 1}
    alone = {"mesh": mesh, "processes": 1, "global_batch": 8}
    whole = equality.baseline(steps=3, global_batch=24, optimizer="sgd").ranks[0]
    assert three_axes.calculate_bytes(alone, 0)[0] == whole["parameter_bytes"]
    assert set(three_axes.calculate_bytes(alone, 0)[1].values()) == {0}
    two = {**alone, "mesh": {**mesh, "pipeline": 2}, "processes": 2}
    halves = [three_axes.calculate_bytes(two, rank)[0] for rank in (0, 1)]
    assert sum(halves) == whole["parameter_bytes"]


def test_recorded_curves_show_no_bug():
    """Every broken curve stays nearer to the right one than a step moves it, by far in most."""
    found = silent_bugs.read_curves()
    assert list(found["curves"]) == list(silent_bugs.CASES)
    for name, both in found["curves"].items():
        assert len(both["right"]) == 50, name
        gap = silent_bugs.compare_curves(both)
        assert 1e-5 < gap["apart"] < 0.2 * gap["moves"], name


def test_curve_that_shows_its_bug_is_noticed():
    right = [5 - step / 10 + (step % 2) / 10 for step in range(50)]
    gap = silent_bugs.compare_curves({"right": right, "wrong": [loss + 0.3 for loss in right[20:]]})
    assert gap["apart"] == pytest.approx(0.3)
    assert gap["moves"] < gap["apart"]
