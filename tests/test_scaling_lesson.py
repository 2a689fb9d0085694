"""Lesson 04c: which learning rate is best, what the figures say, and the ramp of the snippet."""

import math
import runpy

import pytest

from bootcamp.paths import SRC
from bootcamp_lessons.diagrams import scaling
from bootcamp_lessons.exercises.data_parallel import ranks_for_speed_up, scaled_rate


def training(batch, rate, held_out, warm_up=0, seed=0):
    row = {"batch": batch, "warm_up": warm_up, "rate": rate, "seed": seed}
    return row | {"held_out": held_out, "highest": 6.0}


SWEEP = [
    *(training(32, rate, loss) for rate, loss in ((0.05, 2.0), (0.1, 2.1))),
    *(training(256, rate, loss) for rate, loss in ((0.05, 3.0), (0.1, 2.9), (0.4, 2.75))),
    training(256, 0.8, math.nan),
    training(256, 0.4, 2.5, warm_up=5),
]


def test_best_rates_are_those_without_warm_up_and_diverged_ones_are_never_best():
    best = scaling.find_best_rates(SWEEP)
    assert (best.rate_of_base, best.rate_of_large) == (0.05, 0.4)
    assert best.share_closed == pytest.approx(25)  # 3.0 -> 2.75 of 3.0 -> 2.0
    spoilt = [*SWEEP, training(256, 0.4, math.nan, seed=1)]
    assert scaling.find_best_rates(spoilt).rate_of_large == 0.1, "one seed has diverged"


def test_overhead_is_what_the_ranks_take_beyond_their_share(make_run):
    pair = make_run("cpu", 1, speed=100.0, batch=32), make_run("ddp", 2, speed=160.0, batch=32)
    row = scaling.overhead_table([pair])[0]
    assert row["one process, ms"] == pytest.approx(320)
    assert row["overhead, ms"] == pytest.approx(200 - 160)


def test_learning_rates_ramp_from_the_base_rate_as_the_exercise_does():
    snippet = runpy.run_path(str(SRC / "snippets" / "learning_rates.py"))
    learning_rate = snippet["learning_rate"]
    assert learning_rate(0, 0.4, 0) == 0.4
    rates = [learning_rate(step, 0.4, 7) for step in range(9)]
    assert rates == sorted(rates)
    assert rates[0] == snippet["BASE_RATE"]
    assert rates[7] == rates[8] == 0.4
    assert rates == pytest.approx([scaled_rate(step, 0.05, 8, 7) for step in range(9)])


@pytest.mark.parametrize(("compute", "overhead", "times"), [(1.0, 0.05, 8), (0.6, 0.1, 3)])
def test_fewest_ranks_reach_the_speed_up_and_one_less_does_not(compute, overhead, times):
    ranks = ranks_for_speed_up(compute, overhead, times)
    assert compute / (compute / ranks + overhead) >= times
    assert compute / (compute / (ranks - 1) + overhead) < times
