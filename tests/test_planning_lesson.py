"""Lesson 10: its tables, the sliders that choose a plan, its exercises and its shell."""

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

from bootcamp_lessons import exercise, forecasts, simulators
from bootcamp_lessons.exercises import planning as tasks

PLAN = tasks.PLAN
NEAR = {"tensor": 8, "pipeline": 8, "stage": 1}  # to the fastest


@pytest.fixture(scope="module")
def plans():
    """All plans of a 70 B model on 256 GPUs."""
    return forecasts.list_plans("Llama 3 70B")


# Tables


def test_plans_stand_in_order_and_parts_are_the_whole(plans):
    order = [(not row["fits"], row["seconds_per_step"]) for row in plans]
    assert order == sorted(order)
    for row in plans:
        assert sum(row["seconds"].values()) == pytest.approx(row["seconds_per_step"])
        assert sum(row["gb"].values()) == pytest.approx(row["peak_gb"])
        assert row["fits"] == (row["peak_gb"] <= row["gpu_gb"])


def test_plans_lose_by_the_part_that_grew_most_against_the_best(plans):
    assert plans[0]["slower_by"] == ""
    for row in plans.rows[1:]:
        assert (row["slower_by"] == "memory") == (not row["fits"])
    assert {"recomputation", "bubble"} <= set(plans.column("slower_by"))
    turned = [dict(row) for row in plans]
    for part, words in forecasts.SLOWER_BY.items():
        turned[3]["seconds"] = plans[3]["seconds"] | {part: 1e3}
        assert forecasts.rank_plans(turned)[3]["slower_by"] == words
    turned[3] |= {"seconds": plans[3]["seconds"] | {"compute": 1e3}, "recompute": "full"}
    assert forecasts.rank_plans(turned)[3]["slower_by"] == "recomputation"


def test_growth_names_its_limits():
    """By construction: data ranks alone, then matrices in eight over links that are slow."""
    how = {"batch": 2**22, "tensor": 1, "pipeline": 1, "context": 1}
    small, full, none = forecasts.grow("Llama 3 8B", counts=(8, 512, 1024), **how)
    assert small["shares"]["compute"] > 0.9
    assert (full["samples_per_gpu"], full["data"], full["marks"]) == (1, 512, [])
    assert none["marks"] == ["no plan divides the batch"]
    assert none["tokens_per_second_per_gpu"] is None

    how = {"batch": 2**22, "host_gb_s": 20, "tensor": 8}
    less = forecasts.grow("Llama 3 8B", counts=(64, 512, 4096), **how)
    assert [row["tensor"] for row in less] == [8, 8, 8]
    assert ["batch" in row["marks"] for row in less] == [False, False, True]
    assert sum("links" in row["marks"] for row in less) == 1, "where it sets in, and there alone"
    parts = [share for part, share in less[2]["shares"].items() if part != "latency"]
    assert sum(parts) == pytest.approx(1)
    assert 0 < less[2]["shares"]["latency"] < 0.5 * less[2]["shares"]["data"]
    (large,) = forecasts.grow("Llama 3 405B", counts=(8,))
    assert large["marks"] == ["no plan fits the memory"]


def test_sliders_move_one_plan_among_all(picture, plans):
    best = {name: plans[0][words] for name, (words, _) in simulators.PLAN.items()}
    controls = simulators.planner(**best, recompute=plans[0]["recompute"])
    assert "100 % of the best" in picture.html
    for control, value, says in (
        ("recompute", "full", "slower than the best by: recomputation"),
        ("zero", 0, "but it does not fit"),
        ("pipeline", 32, "80 layers do not divide over 32 stages"),
        ("model", "Llama 2 7B", "Llama 2 7B on 256"),
    ):
        controls[control].value = value
        assert says in picture.html
    assert all(control.description for control in controls.values())


# Exercises


@pytest.mark.solves("plan_for_256")
def test_solution_is_accepted_and_nothing_is_no_attempt():
    assert "a hint comes with the first attempt" in str(exercise.try_out(PLAN, None))
    result = exercise.try_out(PLAN, PLAN.solution)
    assert result.solved, result
    assert str(PLAN.solution) in exercise.solution(PLAN.name)


def test_plans_near_the_fastest_are_accepted_and_limits_of_others_said():
    near = [row for row in PLAN.tried if row["fits"]]
    near = [row for row in near if row["seconds_per_step"] <= PLAN.most_seconds]
    assert len(near) >= 2
    for row in near:
        given = {name: row[name] for name in ("tensor", "pipeline", "data", "recompute")}
        result = exercise.try_out(
            PLAN, given | {"stage": row["ZeRO"], "micro_batch": row["micro-batch"]}
        )
        assert result.solved, result
    said = str(result).partition("What limits others:")[2]
    for limit in ("the pipeline's bubble", "parameters on the links", "do not fit 80 GB"):
        assert limit in said


WRONG = [
    (5, "Expected: a dictionary such as"),
    ({"precision": "fp8"}, "Seen: precision: not yours to choose"),
    ({"tensor": 8, "data": 16}, "128 ranks, and there are 256"),
    ({"tensor": 8, "pipeline": 2}, tasks.STATES),
    ({"stage": 3}, "of activations\nActivations are the largest part"),
    ({"stage": 3, "recompute": "full"}, "for every micro-batch"),
    ({"tensor": 16, "pipeline": 2, "stage": 1}, "Groups of more than 8"),
    ({"tensor": 4, "pipeline": 16, "stage": 1}, "more micro-batches, or fewer"),
    (NEAR | {"recompute": "full"}, "Recomputation repeats forward passes"),
    (NEAR | {"context": 2}, "Context ranks exchange keys and values"),
]


@pytest.mark.parametrize(("given", "says"), WRONG)
def test_wrong_answers_hear_why(given, says):
    result = exercise.try_out(PLAN, given)
    assert not result.solved
    assert says in str(result), result


def test_claims_that_are_made_up_break_each_limit_and_published_ones_none():
    found = [tasks.cannot_be(claim) for claim in tasks.MADE_UP.values()]
    assert set(found) == {"memory", "compute", "network", "none"}
    assert {tasks.cannot_be(claim) for claim in tasks.PUBLISHED.values()} == {"none"}
