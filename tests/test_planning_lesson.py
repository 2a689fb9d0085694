"""Lesson 10: plans and knobs that answer its exercises, the tables that it shows, its shell."""

import pytest

from bootcamp_lessons import exercise, forecasts
from bootcamp_lessons.exercises import planning as tasks

PLAN, KNOB = tasks.PLAN, tasks.KNOB


@pytest.mark.solves("plan_for_256", "which_knob")
@pytest.mark.parametrize("task", [PLAN, KNOB], ids=lambda task: task.name)
def test_nothing_is_no_attempt_and_the_solution_is_accepted(task):
    assert "a hint comes with the first attempt" in str(exercise.try_out(task, None))
    result = exercise.try_out(task, task.solution)
    assert result.solved, result
    assert str(task.solution) in exercise.solution(task.name)


def test_any_plan_near_the_fastest_is_accepted_and_what_limits_others_is_said():
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


WRONG = {
    "no plan": (5, "Expected: a dictionary such as"),
    "empty": ({}, "Expected: a dictionary such as"),
    "not its field": ({"precision": "fp8"}, "Seen: precision: not yours to choose"),
    "a text": ({"tensor": "8"}, "Seen: tensor='8'"),
    "no such recomputation": ({"recompute": "some"}, "Seen: recompute='some': expected one of"),
    "a mesh that leaves GPUs over": ({"tensor": 8, "data": 16}, "128 ranks, and there are 256"),
    "no ranks": ({"tensor": 0}, "tensor=0: expected 1 or more"),
    "states too large": ({"tensor": 8, "pipeline": 2}, tasks.STATES),
    "activations too large": ({"stage": 3}, "of activations\nActivations are the largest part"),
    "FSDP over a slow network": ({"stage": 3, "recompute": "full"}, "for every micro-batch"),
    "tensor over hosts": ({"tensor": 16, "pipeline": 2, "stage": 1}, "Groups of more than 8"),
    "too many stages": ({"tensor": 4, "pipeline": 16, "stage": 1}, "more micro-batches, or fewer"),
    "computed twice": (
        {"tensor": 8, "pipeline": 8, "stage": 1, "recompute": "full"},
        "Recomputation repeats forward passes",
    ),
    "context ranks for short sequences": (
        {"tensor": 8, "pipeline": 8, "context": 2, "stage": 1},
        "Context ranks exchange keys and values",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_hears_why(name):
    given, says = WRONG[name]
    result = exercise.try_out(PLAN, given)
    assert not result.solved
    assert says in str(result), result


WRONG_KNOBS = {
    "two at once": ({"pipeline": 2, "stage": 2}, "Seen: 2 changes: pipeline, stage"),
    "still too large": ({"stage": 2}, "of activations\nActivations are the largest part"),
    "FSDP": ({"stage": 3}, "gradients and parameters on the links"),
    "recompute everything": ({"recompute": "full"}, "Recomputation repeats forward passes"),
    "tensor over hosts": ({"tensor": 16}, "tensor-parallel collectives"),
    "no whole mesh": ({"tensor": 6}, "60 ranks, and there are 64 GPUs"),
}


@pytest.mark.parametrize("name", WRONG_KNOBS)
def test_a_wrong_knob_hears_why(name):
    given, says = WRONG_KNOBS[name]
    result = exercise.try_out(KNOB, given)
    assert not result.solved
    assert says in str(result), result


def test_the_given_plan_does_not_fit_and_more_than_one_knob_is_right():
    assert not KNOB.row({})["fits"]
    right = [given for given in ({"pipeline": 2}, {"micro_batch": 1}) if not _why(KNOB, given)]
    assert len(right) == 2


def _why(task, given) -> str:
    result = exercise.try_out(task, given)
    return "" if result.solved else str(result)


def test_a_plan_faster_than_any_that_was_tried_is_accepted(monkeypatch):
    slow = dict(PLAN.tried[0])
    slow["seconds_per_step"] *= 1.5
    monkeypatch.setitem(PLAN.__dict__, "tried", forecasts.Table([slow], ""))
    assert "faster than the fastest" in str(exercise.try_out(PLAN, PLAN.solution))


def test_made_up_claims_break_each_limit_and_published_ones_none():
    found = [tasks.cannot_be(claim) for claim in tasks.MADE_UP.values()]
    assert set(found) == {"memory", "compute", "network", "none"}
    assert {tasks.cannot_be(claim) for claim in tasks.PUBLISHED.values()} == {"none"}
    assert tasks.claims_table().column("made-up claim") == list(tasks.MADE_UP)


def test_a_shell_answers_all_rows_and_names_the_malformed_one():
    text = "gpu,gpus,model,tp,dp,batch,micro_batch\n"
    text += "H100,8,Llama 3 8B,8,1,8,1\nH100,8,Llama 3 8B,3,2,8,1\nH100,8,Llama 3 8B,8,1,8,1\n"
    first, wrong, last = forecasts.ask_in_shell(text, ["gpus", "mfu", "error"])
    assert first == last
    assert 0 < first["mfu"] < 1
    assert first["error"] is None
    assert wrong["mfu"] is None
    assert "6 ranks, and there are 8 GPUs" in wrong["error"]


def test_recorded_errors_are_shown_as_recorded():
    recorded = forecasts.read_accuracy()
    assert len(forecasts.errors_by_table()) == len(recorded["tables"])
    worst = forecasts.worst_errors().column("error %")
    assert [abs(error) for error in worst] == sorted(map(abs, worst), reverse=True)
    assert len(forecasts.errors_left_out()) == 3
    assert len(forecasts.errors_unseen()) == 20
    right, pairs = forecasts.count_ranked_pairs()
    assert 0 < right <= pairs
    assert forecasts.mean_errors()["planner"] > 0


def test_limits_are_named_with_the_gpus_at_which_they_set_in():
    growth = forecasts.grow("Llama 3 405B", counts=(64, 128, 16384))
    line = forecasts.find_limits({"Llama 3 405B": growth})[0]
    assert line["fits from"] == 128
    assert line["links"] == 16384
    assert line["million tokens a step"] == pytest.approx(2**24 / 1e6)
    assert line["last that divide the batch"] is None
