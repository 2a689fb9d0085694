"""Notebook 06b's pictures and its explorer, without a browser."""

import pytest

pytest.importorskip("matplotlib")

from bootcamp.costs import pipeline_schedules
from bootcamp.drawing import style
from bootcamp_lessons import explorers
from bootcamp_lessons.diagrams import pipelines as diagrams


def spans_of(schedule, ranks=2, micro_batches=4):
    return pipeline_schedules.simulate(pipeline_schedules.plan(schedule, ranks, micro_batches))


@pytest.mark.parametrize("schedule", pipeline_schedules.SCHEDULES)
def test_a_chart_has_a_box_for_each_action(schedule):
    spans = spans_of(schedule)
    drawn = diagrams.gantt({schedule: spans}, "title")
    (axes,) = drawn.axes
    frames = [bars for bars in axes.collections if not len(bars.get_facecolor())]
    boxes = [path.get_extents() for bars in frames for path in bars.get_paths()]
    assert {(box.x0, box.x1, round(box.y0 + 0.42)) for box in boxes} == {
        (span.began, span.ended, span.rank) for span in spans
    }
    assert len(boxes) == len(spans)
    assert f"bubble {pipeline_schedules.bubble(spans):.2f}" in drawn.alt
    assert style.png(drawn)


def test_theory_and_measurement_share_an_axis():
    charts = {"planned": spans_of("1f1b"), "measured": spans_of("gpipe")}
    drawn = diagrams.gantt(charts, "both", "milliseconds", scale=1e3)
    above, below = drawn.axes
    assert above.get_xlim() == below.get_xlim()
    assert "milliseconds" in below.get_xlabel()


def test_what_is_in_flight_counts_whole_micro_batches():
    assert "in flight at most 4, 4" in diagrams.describe(spans_of("gpipe"))
    assert "in flight at most 2.5, 1.5" in diagrams.describe(spans_of("interleaved"))


def test_what_ranks_hold_is_drawn():
    rows = [
        {"schedule": name, "rank": rank, "measured": 2.0 + rank, "formula": 2.0}
        for name in ("gpipe", "1f1b")
        for rank in range(2)
    ]
    drawn = diagrams.peak_memory(rows, "made up")
    assert "1f1b rank 1: 3.0 MB" in drawn.alt
    assert "made up" in drawn.alt
    assert len(drawn.axes[0].patches) == 4


def test_the_charts_of_the_idea():
    assert "in one piece: bubble 3.00" in diagrams.whole_and_cut().alt
    assert "interleaved: bubble 0.19" in diagrams.planned("1f1b", "interleaved").alt


def fallback_table(**initial) -> str:
    data = explorers.make_data("pipeline_schedule", **initial)
    return str(explorers.make_fallback_table("pipeline_schedule", data))


def test_any_choice_is_shown_or_refused_with_the_reason():
    for schedule in pipeline_schedules.SCHEDULES:
        for ranks, m in ((1, 1), (3, 6)):
            shown = fallback_table(schedule=schedule, ranks=ranks, micro_batches=m)
            assert f"{schedule}, {ranks} ranks, {m} micro-batches: " in shown
    assert "needs at least 4 micro-batches" in fallback_table(
        schedule="1f1b", ranks=4, micro_batches=3
    )
    charts = explorers.make_data("pipeline_schedule")["charts"]
    assert charts["gpipe 2 8"]["held"] == [8, 8]
    assert charts["1f1b 2 8"]["held"] == [2, 1]
