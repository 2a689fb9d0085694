"""Notebook 06b's pictures and its explorer, without a browser."""

import contextlib

import pytest

pytest.importorskip("matplotlib")

from bootcamp.costs import pipeline_schedules
from bootcamp.drawing import style
from bootcamp_lessons import explorers, simulators  # noqa: E402
from bootcamp_lessons.diagrams import pipeline_gantt as diagrams  # noqa: E402


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
    assert "in flight at most 4, 4" in diagrams.facts(spans_of("gpipe"))
    assert "in flight at most 2.5, 1.5" in diagrams.facts(spans_of("interleaved"))


def test_what_ranks_hold_is_drawn():
    rows = [
        {"schedule": name, "rank": rank, "measured": 2.0 + rank, "formula": 2.0}
        for name in ("gpipe", "1f1b")
        for rank in range(2)
    ]
    drawn = diagrams.held_by_schedule(rows, "made up")
    assert "1f1b rank 1: 3.0 MB" in drawn.alt
    assert "made up" in drawn.alt
    assert len(drawn.axes[0].patches) == 4


def test_the_charts_of_the_idea():
    assert "in one piece: bubble 3.00" in diagrams.whole_and_cut().alt
    assert "interleaved: bubble 0.19" in diagrams.in_theory("1f1b", "interleaved").alt


def test_any_choice_is_drawn_or_refused_with_the_reason():
    for schedule in pipeline_schedules.SCHEDULES:
        for ranks, m in ((1, 1), (3, 7)):
            with contextlib.suppress(pipeline_schedules.Impossible):
                assert f"{ranks} ranks" in diagrams.explored(schedule, ranks, m).alt
    with pytest.raises(pipeline_schedules.Impossible, match="needs at least 4 micro-batches"):
        diagrams.explored("1f1b", 4, 3)
    assert "at most 100 %, 100 %" in diagrams.explored("gpipe", 2, 8).alt
    assert "at most 25 %, 12 %" in diagrams.explored("1f1b", 2, 8).alt


def test_a_measured_run_is_laid_below():
    spans = spans_of("interleaved")
    assert explorers.choices_of(spans) == {
        "schedule": "interleaved",
        "ranks": 2,
        "micro_batches": 4,
    }
    drawn = diagrams.explored("interleaved", 2, 4, spans).alt
    assert "in theory: " in drawn
    assert "measured: " in drawn
    with pytest.raises(ValueError, match="no schedule's plan"):
        explorers.choices_of([span for span in spans if span.action.micro_batch != 1])


@pytest.mark.slow
def test_the_controls_choose_and_a_run_brings_its_own_choices(monkeypatch, picture):
    monkeypatch.setenv(simulators.VARIABLE, "0")
    controls = simulators.pipeline_schedule({"mine": spans_of("dualpipe", 2, 5)}, schedule="gpipe")
    controls["ranks"].value = 3
    assert "gpipe, 3 ranks, 8 micro-batches" in picture.html
    assert "measured" not in picture.html
    controls["run"].value = "mine"
    assert "dualpipe, 2 ranks, 5 micro-batches" in picture.html
    assert "measured" in picture.html
    controls["micro_batches"].value = 3
    assert controls["run"].value == explorers.NO_RUN
    assert "Not possible" in picture.html
    controls["micro_batches"].value = 8
    assert "dualpipe, 2 ranks, 8 micro-batches" in picture.html
    begun = simulators.pipeline_schedule({"mine": spans_of("dualpipe", 2, 5)}, run="mine")
    assert begun["schedule"].value == "dualpipe"
