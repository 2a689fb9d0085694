"""Lesson 10: plans and knobs that answer its exercises, the tables that it shows, its shell."""

import pytest

from bootcamp_lessons import exercise, forecasts
from bootcamp_lessons.exercises import planning as tasks

PLAN, KNOB = tasks.PLAN, tasks.KNOB
NEAR = {"tensor": 8, "pipeline": 8, "stage": 1}  # to the fastest


@pytest.mark.solves("plan_for_256", "which_knob")
@pytest.mark.parametrize("task", [PLAN, KNOB], ids=lambda task: task.name)
def test_solutions_are_accepted_and_nothing_is_no_attempt(task):
    assert "a hint comes with the first attempt" in str(exercise.try_out(task, None))
    result = exercise.try_out(task, task.solution)
    assert result.solved, result
    assert str(task.solution) in exercise.solution(task.name)


def test_plans_near_the_fastest_are_accepted_and_limits_of_others_said():
    near = [row for row in PLAN.tried if row["fits"]]
    near = [row for row in near if row["seconds_per_step"] <= PLAN.most_seconds]
    assert len(near) >= 2
    for row in near:
        given = {"tensor": row["tensor"], "pipeline": row["pipeline"], "data": row["data"]}
        given |= {"stage": row["ZeRO"], "micro_batch": row["micro-batch"]}
        result = exercise.try_out(PLAN, given | {"recompute": row["recompute"]})
        assert result.solved, result
        assert "the fastest of" in str(result) or "slower than the fastest" in str(result)
    said = str(result).partition("What limits others:")[2]
    assert "the pipeline's bubble" in said
    assert "gradients and parameters on the links" in said
    assert "do not fit 80 GB" in said


WRONG = [
    (PLAN, 5, "Expected: a dictionary such as"),
    (PLAN, {}, "Expected: a dictionary such as"),
    (PLAN, {"precision": "fp8"}, "Seen: precision: not yours to choose"),
    (PLAN, {"tensor": 8, "data": 16}, "128 ranks, and there are 256"),
    (PLAN, {"tensor": 8, "pipeline": 2}, tasks.STATES),
    (PLAN, {"stage": 3}, "of activations\nActivations are the largest part"),
    (PLAN, {"stage": 3, "recompute": "full"}, "for every micro-batch"),
    (PLAN, {"tensor": 16, "pipeline": 2, "stage": 1}, "Groups of more than 8"),
    (PLAN, {"tensor": 4, "pipeline": 16, "stage": 1}, "more micro-batches, or fewer"),
    (PLAN, NEAR | {"recompute": "full"}, "Recomputation repeats forward passes"),
    (PLAN, NEAR | {"context": 2}, "Context ranks exchange keys and values"),
    (KNOB, {"pipeline": 2, "stage": 2}, "Seen: 2 changes: pipeline, stage"),
    (KNOB, {"stage": 2}, "of activations\nActivations are the largest part"),
    (KNOB, {"stage": 3}, "gradients and parameters on the links"),
    (KNOB, {"recompute": "full"}, "Recomputation repeats forward passes"),
    (KNOB, {"tensor": 16}, "tensor-parallel collectives"),
    (KNOB, {"tensor": 6}, "60 ranks, and there are 64 GPUs"),
]


@pytest.mark.parametrize(("task", "given", "says"), WRONG)
def test_wrong_answers_hear_why(task, given, says):
    result = exercise.try_out(task, given)
    assert not result.solved
    assert says in str(result), result


def test_given_plan_does_not_fit_and_more_than_one_knob_is_right():
    assert not KNOB.row({})["fits"]
    for right in ({"pipeline": 2}, {"micro_batch": 1}):
        result = exercise.try_out(KNOB, right)
        assert result.solved, result


def test_plans_faster_than_any_that_was_tried_are_accepted(monkeypatch):
    slow = dict(PLAN.tried[0])
    slow["seconds_per_step"] *= 1.5
    monkeypatch.setitem(PLAN.__dict__, "tried", forecasts.Table([slow], ""))
    assert "faster than the fastest" in str(exercise.try_out(PLAN, PLAN.solution))


def test_claims_that_are_made_up_break_each_limit_and_published_ones_none():
    found = [tasks.cannot_be(claim) for claim in tasks.MADE_UP.values()]
    assert set(found) == {"memory", "compute", "network", "none"}
    assert {tasks.cannot_be(claim) for claim in tasks.PUBLISHED.values()} == {"none"}
    assert tasks.claims_table().column("made-up claim") == list(tasks.MADE_UP)


def test_shells_answer_all_rows_and_name_the_malformed_one():
    text = "gpu,gpus,model,tp,dp,batch,micro_batch\n"
    text += "H100,8,Llama 3 8B,8,1,8,1\nH100,8,Llama 3 8B,3,2,8,1\nH100,8,Llama 3 8B,8,1,8,1\n"
    first, wrong, last = forecasts.ask_in_shell(text, ["gpus", "mfu", "error"])
    assert first == last
    assert 0 < first["mfu"] < 1
    assert first["error"] is None
    assert wrong["mfu"] is None
    assert "6 ranks, and there are 8 GPUs" in wrong["error"]
