"""Lesson 14: plans within limits, tried without the slow link where its speed is not the point."""

import re
from types import SimpleNamespace

import pytest
import trained

from bootcamp.launcher import launch, simulated_hosts
from bootcamp.scripts.variants import variant
from bootcamp_lessons import capstone, exercise


@pytest.fixture(autouse=True)
def open_link(monkeypatch, tmp_path):
    monkeypatch.setattr(capstone, "LINK", None)
    monkeypatch.setattr(capstone, "LOGS", tmp_path)
    shared = SimpleNamespace(launch=trained.trained)  # several answers are judged by the same runs
    monkeypatch.setattr(capstone, "launch", shared)


@pytest.mark.solves("capstone_small")
def test_plan_within_both_limits_solves_the_exercise(monkeypatch):
    tried = []
    real = capstone.try_plan
    monkeypatch.setattr(
        capstone, "try_plan", lambda *given: tried.append(real(*given)) or tried[-1]
    )
    result = exercise.try_out(exercise.find("capstone_small"), {"script": "pp", "micro_batches": 8})
    assert result.solved, result
    assert "MB on the fullest rank of 10.0" in str(result)
    assert tried[0].world == 4
    assert simulated_hosts.why_not() or tried[0].config["hosts"] == 2


@pytest.mark.solves("capstone_fits")
def test_hybrid_shards_fit_the_larger_limit_only():
    plan = {"script": "hsdp", "shard": 2}
    reckoned = {"states_mb": 2.7, "activations_mb": 13.5}
    assert exercise.try_out(exercise.find("capstone_fits"), plan | reckoned).solved
    result = exercise.try_out(exercise.find("capstone_small"), plan)
    assert not result.solved
    # the head's gathered parameters are alive when the backward begins, now and then twice
    assert re.search(r"Seen: 16\.[23] MB: activation 13\.[56]", str(result))
    assert "Which strategy cuts them too?" in str(result)


@pytest.mark.parametrize(
    ("reckoned", "says"),
    [
        ({}, "no number for states_mb and activations_mb"),
        ({"states_mb": 1.34}, "no number for activations_mb"),
        ({"states_mb": "1.34", "activations_mb": 13.5}, "no number for states_mb"),
        ({"states_mb": 5.4, "activations_mb": 13.5}, "states: 5.4 MB is too much"),
        ({"states_mb": 1.34, "activations_mb": 3.4}, "activations: 3.4 MB is too little"),
    ],
    ids=["nothing", "half", "a text", "states of DDP", "activations shared twice"],
)
def test_plan_that_fits_without_the_reason_is_no_answer(reckoned, says):
    result = exercise.try_out(exercise.find("capstone_fits"), {"script": "fsdp", **reckoned})
    assert not result.solved
    assert says in str(result), result


@pytest.mark.parametrize("name", ["capstone_fits", "capstone_small"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "no plan"),
        (["hsdp"], "Expected: a plan such as"),
        ({"script": "hsdp", "steps": 3}, "steps: given by the task, the same for everybody"),
        ({"script": "nothing"}, "there is no script 'nothing'"),
        ({"script": "ddp"}, "optimizer 2.68"),
        ({"script": "hsdp", "shard": 3}, "--shard: 4 ranks do not"),
    ],
)
def test_plan_that_does_not_fit_is_told_why(name, given, says):
    if name == "capstone_fits" and isinstance(given, dict):
        given = {"states_mb": 5.4, "activations_mb": 13.5} | given
    result = exercise.try_out(exercise.find(name), given)
    assert not result.solved
    assert says in str(result), result
    assert ("Hint: " in str(result)) == (given is not None), "the first attempt brings it"


def test_other_training_is_not_valid_however_fast():
    whole = {"batches = data.Batches(args, rank, world)": "batches = data.Batches(args, 0, 1)"}
    with pytest.raises(exercise.Wrong, match="samples that two ranks trained on"):
        capstone.try_plan(
            capstone.parse_plan(variant("ddp", "capstone_whole", whole)), max_bytes=10**9
        )


def test_board_ranks_valid_entries_by_tokens_per_second(monkeypatch):
    class Measured:
        ranks = [{f"{kind}_bytes": 1e6 for kind in capstone.KINDS}]
        config = {"hosts": 1}

        def __init__(self, tokens):
            self.tokens_per_second = tokens

    def tried(plan, max_bytes=0):
        if plan.script == "bad":
            raise exercise.Wrong("at most 1 MB on each rank", "2 MB")
        return Measured(plan.flags["speed"])

    monkeypatch.setattr(capstone, "try_plan", tried)
    assert "Valid: 100 tokens/s, 4.0 MB" in str(capstone.enter("Ada", "slow", speed=100))
    for _ in range(2):  # the same plan again is no second row
        assert "Not valid" in str(capstone.enter("Bo", "bad"))
    assert "Valid" in str(capstone.enter("Cy", "fast", speed=900))
    board = capstone.board()
    assert board.column("who") == ["Cy", "Ada", "Bo"]
    assert board.column("place") == [1, 2, None]
    assert board.column("link") == ["none", "none", None]
    assert board[2]["not valid"] == "at most 1 MB on each rank"
    (capstone.LOGS / "capstone.json").write_text("{half")
    assert len(capstone.board()) == 0


def test_ranks_are_this_machines_without_hosts(monkeypatch):
    monkeypatch.setattr(simulated_hosts, "why_not", lambda: "no namespaces here")
    assert capstone.choose_hosts() == {"device": "cpu"}
    run = launch.launch("fsdp", 4, steps=3, quiet=True, **capstone.MODEL, **capstone.choose_hosts())
    assert capstone.count_models_sent(run) is None
    assert capstone.count_fullest_rank_bytes(run) < capstone.MAX_BYTES
