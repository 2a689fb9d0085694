"""Where to cut a sequence of stages, by hand and for GPT-2."""

import pytest

from bootcamp.costs import layer_cut


def test_the_best_cut_has_the_cheapest_most_expensive_part():
    assert layer_cut.best([1, 1, 1, 1], 2) == (0, 2, 4)
    assert layer_cut.best([0, 1, 1, 4], 2) == (0, 3, 4)
    assert layer_cut.part_costs([0, 1, 1, 4], (0, 3, 4)) == [2, 4]
    assert layer_cut.equal(14, 4) == (0, 3, 7, 10, 14)


def test_the_head_of_gpt_2_is_worth_more_than_four_blocks():
    costs = layer_cut.gpt2("small")
    assert costs["time"][0] == 0
    assert 4 < costs["time"][-1] / costs["time"][1] < 5
    rows = layer_cut.compare(costs, 4)
    assert rows[0]["stages"] == "3 + 4 + 3 + 4"
    assert rows[0]["time, largest / mean"] == pytest.approx(1.813, abs=1e-3)
    for row, kind in zip(rows[1:], costs, strict=True):
        best = min(each[f"{kind}, largest / mean"] for each in rows)
        assert row[f"{kind}, largest / mean"] == best
