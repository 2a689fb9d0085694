"""The pictures of notebook 06, drawn from made-up numbers."""

import pytest

pytest.importorskip("matplotlib")

from bootcamp.costs.pipeline_schedules import Action, Span
from bootcamp_lessons.diagrams import pipelines

STEP = [
    Span(0, Action("F", 0, 0), 0.0, 1.0),
    Span(1, Action("F", 1, 0), 1.0, 2.0),
    Span(1, Action("B", 1, 0), 2.0, 4.0),
    Span(0, Action("B", 0, 0), 4.0, 6.0),
]


def test_in_a_layer_split_one_rank_works_at_a_time():
    assert pipelines.count_active_ranks(STEP) == 1


def test_two_ranks_that_work_at_once_are_seen():
    both = [span._replace(began=span.began - 0.5) for span in STEP[1:]]
    assert pipelines.count_active_ranks([STEP[0], *both]) == 2


def test_three_cuts_tells_all_of_them():
    figure = pipelines.three_cuts()
    for word in ("Layers:", "Pipeline:", "Matrices:", "one of them always waits"):
        assert word in figure.alt


def test_what_fits_names_curves_and_devices():
    needs = {"state alone": [(85e6, 1.4), (1.5e9, 24.0)], "and a batch": [(85e6, 6), (1.5e9, 65)]}
    figure = pipelines.memory_needs(needs, {"V100": 16.0, "A100": 80.0})
    assert "state alone: 1.4 to 24 GB" in figure.alt
    assert "V100 16 GB" in figure.alt
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(needs)


def test_stage_costs_says_what_lies_before_the_cut():
    row = {"parameter_bytes": 1, "activation_bytes": 1, "forward_seconds": 1, "backward_seconds": 2}
    rows = [{"stage": f"s{number}", **row} for number in range(4)]
    figure = pipelines.stage_costs(rows, cut=1)
    assert "parameters: 25 % before the cut" in figure.alt
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [
        "s0",
        "s1",
        "s2",
        "s3",
    ]
