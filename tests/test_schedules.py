"""Pipeline schedules: plans that torch carries out as they are, and what is computed from them."""

import pytest
from trained import trained

from bootcamp.costs import pipeline_schedules as schedules
from bootcamp.costs.pipeline_schedules import SCHEDULES, Action, Impossible, Kept
from bootcamp.paths import SRC
from bootcamp_lessons import sharding_tables

GRID = [(ranks, m) for ranks in (2, 3, 4, 8) for m in range(1, 25)]


def timetable(schedule, ranks, micro_batches, **seconds):
    return schedules.simulate(schedules.plan(schedule, ranks, micro_batches), **seconds)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_bubble_is_the_papers_however_long_a_backward_takes(schedule):
    compared = 0
    for ranks, m in GRID:
        said = schedules.bubble_by_formula(schedule, ranks, m)
        if said is None or m < schedules.LEAST.get(schedule, 0) * ranks:
            continue
        spans = timetable(schedule, ranks, m, backward_seconds=(0.5, 2.0, 3.0)[m % 3])
        assert schedules.bubble(spans) == pytest.approx(said)
        assert schedules.idle_share(spans) == pytest.approx([said / (1 + said)] * ranks)
        compared += 1
    assert compared > 20


def test_zero_bubble_leaves_a_third_of_the_bubble():
    """Qi et al., 2023: (p-1)(F + I - W) is waited for instead of (p-1)(F + I + W)."""
    for ranks, m in GRID:
        if m % ranks == 0:
            said = schedules.bubble_by_formula("zero-bubble", ranks, m)
            assert said == pytest.approx((ranks - 1) / (2 * m) / 3)
            assert schedules.bubble(timetable("zero-bubble", ranks, m)) == pytest.approx(said)


def test_ranks_of_zb_v_never_wait_between_its_first_and_its_last_action():
    """Qi et al., 2023, section 6: with F, I and W of one length; held is what 1F1B's rank 0 holds.

    What is left is that rank p-1 begins p-1 half forwards later than rank 0: (p-1)/(6m).
    """
    for ranks, m in GRID:
        if m < 2 * ranks - 1:
            continue  # too few to fill the V
        spans = timetable("zb-v", ranks, m, forward_seconds=1 / 2, backward_seconds=1)
        for of_rank, busy in zip(
            schedules.group_by_rank(spans), schedules.busy_seconds(spans), strict=True
        ):
            assert of_rank[-1].ended - of_rank[0].began == pytest.approx(busy)
        assert schedules.bubble(spans) == pytest.approx((ranks - 1) / (6 * m))
        assert schedules.most_in_flight(spans) == [2 * ranks] * ranks  # halves of a model


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_plan_has_each_action_once(schedule):
    for ranks, m in GRID:
        try:
            orders = schedules.plan(schedule, ranks, m)
        except Impossible:
            continue
        held = [schedules.stages_of_rank(schedule, rank, ranks) for rank in range(ranks)]
        assert sorted(sum(map(list, held), [])) == list(range(ranks * schedules.CHUNKS[schedule]))
        for stages, order in zip(held, orders, strict=True):
            assert len(order) == len(set(order))
            for stage in stages:
                for kinds in ("F", "BI", "BW"):
                    done = [a.micro_batch for a in order if a.stage == stage and a.kind in kinds]
                    assert sorted(done) == list(range(m))
        assert schedules.makespan(schedules.simulate(orders)) > 0, "the plan goes through"


def test_micro_batches_in_flight_by_formula():
    for ranks, m in GRID:
        assert schedules.most_in_flight(timetable("gpipe", ranks, m)) == [m] * ranks
        if m >= ranks:
            spans = timetable("1f1b", ranks, m)
            assert schedules.most_in_flight(spans) == list(range(ranks, 0, -1))


def test_simulation_by_hand():
    spans = timetable("gpipe", 2, 2, forward_seconds=[1, 3])
    first, second = schedules.group_by_rank(spans)
    assert [span.ended for span in first] == [1, 2, 11, 13], "F0, F1, B0, B1"
    assert [span.ended for span in second] == [4, 7, 9, 11]
    assert schedules.hand_over_seconds(spans) == 0
    late = [
        span._replace(began=span.began + 0.5, ended=span.ended + 0.5)
        if (span.rank, span.action.kind) == (0, "B")
        else span
        for span in spans
    ]
    assert schedules.hand_over_seconds(late) == pytest.approx(0.5)


def test_zero_bubble_waits_for_no_gradient_of_the_first_stages_input():
    spans = timetable("zero-bubble", 2, 2, backward_seconds=4.0, input_share=0.25)
    seconds = {(s.action.kind, s.action.stage): s.ended - s.began for s in spans}
    assert (seconds["I", 0], seconds["W", 0]) == (0, 4)
    assert (seconds["I", 1], seconds["W", 1]) == (1, 3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_measured_seconds_give_back_what_was_simulated(schedule):
    given = {"forward_seconds": 2.0, "backward_seconds": 6.0, "input_share": 0.25}
    spans = timetable(schedule, 2, 4, **given)
    found = schedules.median_seconds(spans)
    assert set(found["forward_seconds"]) == {2.0}
    assert found["backward_seconds"] == pytest.approx([6.0] * len(found["backward_seconds"]))
    if schedule in ("zero-bubble", "zb-v", "dualpipe"):
        assert found["input_share"] == pytest.approx(0.25)
    again = schedules.simulate(schedules.plan(schedule, 2, 4), **found)
    assert schedules.bubble(again) == pytest.approx(schedules.bubble(spans))


def test_held_bytes_by_hand():
    order = [Action(kind, 0, i) for kind, i in (("F", 0), ("F", 1), ("I", 0), ("W", 0), ("B", 1))]
    held = schedules.most_held_bytes
    assert held(order, {0: Kept(10)}) == 20
    assert held(order, {0: Kept(10, between=3)}) == 23
    assert held(order, {0: Kept(10, between=3, gradient=1)}) == 24
    one_by_one = [Action(kind, 0, i) for i in range(3) for kind in "FB"]
    assert held(one_by_one, {0: Kept(10, output=2)}) == 14


def test_plan_that_waits_for_itself_is_refused():
    orders = schedules.plan("gpipe", 2, 2)
    orders[0] = orders[0][::-1]
    with pytest.raises(Impossible, match="B1 of stage 0 waits for what is never done"):
        schedules.simulate(orders)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sleeping_ranks_follow_the_plan_and_wait(schedule):
    """The runs that lesson 06b draws; its cells hold real training against the plan."""
    snippet = SRC / "snippets" / "pipeline_sleep.py"
    flags = {"schedule": schedule, "micro_batches": 8, "milliseconds": 15, "steps": 2}
    run = trained(snippet, 4, device="cpu", quiet=True, **flags)
    orders = schedules.list_orders(spans := run.actions())
    assert [each for each in SCHEDULES if schedules.plan(each, 4, 8) == orders] == [schedule]
    slept = {(s.action.kind, s.action.stage): s.ended - s.began for s in spans}
    one = 15e-3 / schedules.CHUNKS[schedule]
    assert min(slept["F", 1], slept.get(("I", 1), one)) >= one
    assert slept.get(("B", 1), 2 * one) >= 2 * one
    (row,) = sharding_tables.compare_bubbles({schedule: run}, 8)
    assert row["measured"] > row["by plan"] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_peak_bytes_of_ranks_are_the_formulas(schedule):
    """The runs that lesson 06b counts."""
    flags = {"schedule": schedule, "micro_batches": 8, "global_batch": 32}
    snippet = SRC / "snippets" / "pipeline_memory.py"
    run = trained(snippet, 2, device="cpu", quiet=True, **flags)
    rows = sharding_tables.compare_peaks(
        {schedule: sharding_tables.read_peak_bytes(run, ranks=2)}, 32, 8
    )
    assert [row["rank"] for row in rows] == [0, 1]
    for row in rows:
        assert row["measured"] == pytest.approx(row["formula"], rel=0.05)
