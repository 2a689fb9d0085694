"""Lesson 13: a script that is not of the course, its record, its ports and their checkers."""

import argparse
import re

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from bootcamp.experiments import equality
from bootcamp.launcher.launch import launch
from bootcamp.train import data, own_script
from bootcamp_lessons import exercise
from bootcamp_lessons.exercises import bring

FOLDER, PROOF = bring.FOLDER, bring.PROOF


def test_script_as_it_came_knows_nothing_of_the_course(tmp_path):
    assert "bootcamp" not in (FOLDER / "as_it_came.py").read_text()
    run = launch(FOLDER / "as_it_came.py", 1, quiet=True, best=tmp_path / "best.pt")
    assert "epoch 1: validation loss " in run.output(0)
    assert "1.running_mean" in torch.load(tmp_path / "best.pt")
    with pytest.raises(ValueError, match=r"left no record .* own_script.Run"):
        equality.compare(run, bring.run_one_process())


def test_port_to_fsdp_trains_the_same_on_four_ranks():
    """That the one to DDP does, its lesson proves."""
    run = launch(FOLDER / "with_fsdp.py", 4, **PROOF)
    proof = equality.same_training(run, bring.run_one_process())
    assert run.config["dropout"] == 0.0
    assert run.config["global_batch"] == 16
    assert len(proof.rows) == 12
    best, expected = (
        torch.load(each.folder / "best.pt") for each in (run, bring.run_one_process())
    )
    assert best.keys() == expected.keys()
    assert all(torch.allclose(best[name], expected[name], atol=1e-5) for name in best)


@pytest.mark.parametrize("ranks", [2, 4])
def test_loops_without_a_data_loader_and_trainers_train_the_same(ranks):
    """In float64: in float32 Adam enlarges rounding, as lesson 13 shows."""
    flags = {"max_iters": 4, "dtype": "float64", "quiet": True}
    runs = [launch(FOLDER / f"nano{port}.py", n, **flags) for port, n in (("_ddp", ranks), ("", 1))]
    assert runs[0].config["steps"] == 4
    equality.same_training(*runs)
    trainers = [
        launch(FOLDER / f"{name}.py", n, quiet=True)
        for name, n in (("trainer_ddp", ranks), ("trainer", 1))
    ]
    equality.same_training(*trainers)


def test_dropout_draws_other_numbers_on_every_rank():
    ways = (("with_ddp.py", 2), ("recorded.py", 1))
    runs = [launch(FOLDER / script, ranks, freeze=True, quiet=True) for script, ranks in ways]
    assert any("loss" in row["compared"] for row in equality.compare(*runs).failed)
    with pytest.raises(ValueError, match=r"dropout is 0.1 here and 0.0"):
        equality.compare(runs[0], bring.run_one_process())


SLIPS = {  # of with_ddp.py -> what is said; others: test_diagnosis.py
    "both ranks save": (
        {"        if rank == 0:\n            torch.save(": "        torch.save("},
        "save on rank 0 only",
    ),
    "the wrapper is saved": ({"torch.save(model.": "torch.save(wrapped."}, "a script without DDP"),
    "a metric of each rank's own": ({"    dist.all_reduce(total)\n": ""}, "The ranks disagree"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_of_a_port_are_told(slip, tmp_path):
    changes, says = SLIPS[slip]
    text, path = (FOLDER / "with_ddp.py").read_text(), tmp_path / "mine.py"
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    proof = equality.compare(launch(path, 2, **PROOF), bring.run_one_process())
    assert says in str([row["hint"] for row in proof.failed])


@pytest.mark.parametrize(
    ("samples", "replicas", "says"),
    [
        (8, 1, "deals out to 1 rank(s), and own_script.Run was told world=2"),
        (9, 2, "would deal some of them twice"),
    ],
)
def test_samplers_of_other_ranks_or_that_pad_are_refused(samples, replicas, says):
    """Other loaders that ranks can't share: test_config.py."""
    sampler = DistributedSampler(range(samples), replicas, 0)
    loader = DataLoader(range(samples), 2, drop_last=True, sampler=sampler)
    with pytest.raises(ValueError, match=re.escape(says)):
        own_script.watch_loader(loader, 2)


@pytest.mark.solves(*(task.name for task in bring.TASKS))
@pytest.mark.parametrize("task", bring.TASKS, ids=lambda task: task.name)
def test_ports_start_rejected_and_end_accepted(task, tmp_path):
    attempt = tmp_path / f"{task.name}.py"
    attempt.write_text(task.starting_point())
    assert all(wrong in attempt.read_text() for wrong in task.broken.values())
    result = exercise.try_out(task, attempt)
    assert not result.solved
    says = {"bring_evaluation": "a mean of means weighs", "bring_fsdp": "something is not sharded"}
    assert says[task.name] in str(result)
    assert task.hint in str(result)
    assert exercise.try_out(task, task.solution_path()).solved


@pytest.mark.parametrize("workers", [0, 1])
def test_samplers_know_what_is_in_the_samples_that_they_see(workers):
    pairs = [(torch.arange(3.0) + number, {"kind": number}) for number in range(4)]
    loader = DataLoader(pairs, 2, drop_last=True, num_workers=workers)
    sampler = own_script.watch_loader(loader, 1)
    numbers = torch.arange(4)
    expected = data.checksums((torch.arange(3.0) + numbers[:, None], numbers))
    found = [sampler.sample_checksums for _ in loader]
    assert found == ([[], []] if workers else [expected[:2], expected[2:]])


def test_steps_that_accumulate_have_the_ids_of_their_batches():
    loader = DataLoader(torch.arange(9), 2, drop_last=True)
    sampler = own_script.watch_loader(loader, 1, batches=2)
    batches = iter(loader)
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
        assert [*next(batches), *next(batches)] == expected
        assert sampler.sample_ids == expected


def test_parsers_of_scripts_do_not_see_the_run_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["mine.py", "--lr", "1", "--run-dir", str(tmp_path), "--x"])
    assert own_script.begin() == tmp_path
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr")
    parser.add_argument("--x", action="store_true")
    assert parser.parse_args().x
