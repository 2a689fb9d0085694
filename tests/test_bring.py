"""Lesson 13: a script that is not of the course, its record, its ports and their checkers."""

import argparse

import pytest
import torch

from bootcamp.classroom import errors
from bootcamp.experiments import equality
from bootcamp.launcher.launch import Options, launch, run_command
from bootcamp.train import data, own_script
from bootcamp_lessons import exercise
from bootcamp_lessons.exercises import bring

FOLDER = bring.FOLDER


def test_the_script_as_it_came_knows_nothing_of_the_course(tmp_path):
    text = (FOLDER / "as_it_came.py").read_text()
    assert "bootcamp" not in text
    command = ["python", str(FOLDER / "as_it_came.py"), "--best", str(tmp_path / "best.pt")]
    assert "epoch 1: validation loss " in run_command(command)
    assert "1.running_mean" in torch.load(tmp_path / "best.pt")


PROOF = bring.PROOF


@pytest.mark.parametrize("script", ["with_ddp", "with_fsdp"])
def test_the_ports_train_the_same_on_four_ranks(script):
    run = launch(FOLDER / f"{script}.py", 4, **PROOF)
    proof = equality.same_training(run, bring.run_one_process())
    assert run.config["dropout"] == 0.0
    assert run.config["global_batch"] == 16
    assert len(proof.rows) == 12
    best, expected = (
        torch.load(each.folder / "best.pt") for each in (run, bring.run_one_process())
    )
    assert best.keys() == expected.keys()
    assert all(torch.allclose(best[name], expected[name], atol=1e-5) for name in best)


def test_dropout_draws_other_numbers_on_every_rank():
    ways = (("with_ddp.py", 2), ("recorded.py", 1))
    runs = [launch(FOLDER / script, ranks, freeze=True, quiet=True) for script, ranks in ways]
    failed = [row["compared"] for row in equality.compare(*runs).failed]
    assert any("loss" in what for what in failed)
    with pytest.raises(ValueError, match=r"dropout is 0.1 here and 0.0"):
        equality.compare(runs[0], bring.run_one_process())


def test_batchnorm_that_is_not_frozen_is_named():
    """Though the script ends in eval mode, after a validation."""
    flags = PROOF | {"freeze": False}
    runs = [launch(FOLDER / f, n, **flags) for f, n in (("with_ddp.py", 2), ("recorded.py", 1))]
    failed = equality.compare(*runs).failed
    assert any("The model has 2 BatchNorm layers" in row["hint"] for row in failed)


WRAP = "wrapped = DistributedDataParallel(model)"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
BY_HAND = """            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
"""
SHARES = "Subset(valid, range(rank, len(valid), world)), args.batch_size"
PADDED = "valid, args.batch_size, sampler=DistributedSampler(valid, world, rank, shuffle=False)"
SLIPS = {  # of with_ddp.py -> what is said
    "the split is made with a seed of each rank": (
        {"torch.manual_seed(0)": "torch.manual_seed(rank)"},
        "a seed that depends on the rank",
    ),
    "set_epoch": ({"    sampler.set_epoch(epoch)\n": ""}, "sampler.set_epoch(epoch)"),
    "a schedule stepped for each rank": (
        {"            schedule.step()\n": "            [schedule.step() for _ in range(world)]\n"},
        "Is a schedule stepped once in each step",
    ),
    "clipped before the average": (
        {"wrapped(pictures)": "model(pictures)", CLIP: f"{CLIP}{BY_HAND}"},
        "clipped before they are averaged",
    ),
    "the batch is not divided": (
        {"share = args.batch_size // world": "share = args.batch_size"},
        "Divide the batch size by the number of ranks",
    ),
    "nothing is wrapped": ({WRAP: "wrapped = model"}, "Nothing is synchronised"),
    "SyncBatchNorm on a CPU": (
        {WRAP: "wrapped = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))"},
        ".eval() of each BatchNorm",
    ),
    "both ranks save": (
        {"        if rank == 0:\n            torch.save(": "        torch.save("},
        "save on rank 0 only",
    ),
    "the wrapper is saved": ({"torch.save(model.": "torch.save(wrapped."}, "a script without DDP"),
    "a metric of each rank's own": ({"    dist.all_reduce(total)\n": ""}, "The ranks disagree"),
    "shuffle=True": ({"share, sampler=sampler": "share, shuffle=True"}, "has shuffle=True"),
    "drop_last is forgotten": (
        {"share, sampler=sampler, drop_last=True": "share, sampler=sampler"},
        "give it drop_last=True",
    ),
    "the sampler in place of the loader": (
        {"optimizer, loader, world": "optimizer, sampler, world"},
        "give it the DataLoader of the training loop",
    ),
    "the sampler knows one rank": (
        {"DistributedSampler(train, world, rank,": "DistributedSampler(train, 1, 0,"},
        "deals out to 1 rank(s), and own_script.Run was told world=2",
    ),
}


def changed(script, changes, path):
    """A file with a script of the lesson in which pieces are replaced."""
    text = (FOLDER / script).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_a_port_is_told(slip, tmp_path):
    changes, says = SLIPS[slip]
    path = changed("with_ddp.py", changes, tmp_path / "mine.py")
    run = launch(path, 2, raises=False, **PROOF)
    if run.status == "ok":
        try:
            told = str(
                [row["hint"] for row in equality.compare(run, bring.run_one_process()).failed]
            )
        except ValueError as refused:
            told = str(refused)
    else:
        error = run.summary["error"]
        told = f"{error['message']}\n{errors.explain(error['message'])}"
    assert says in told


def test_a_validation_through_the_wrapper_on_rank_0_hangs_and_names_its_line(tmp_path):
    changes = {
        "in valid_loader:": "in valid_loader if rank == 0 else ():",
        "cross_entropy(model(": "cross_entropy(wrapped(",
    }
    path = changed("with_ddp.py", changes, tmp_path / "mine.py")
    run = launch(path, 2, raises=False, options=Options(hang_seconds=3), **PROOF)
    assert run.status == "failed"
    assert run.summary["error"]["kind"] == "hang"
    line = path.read_text().splitlines().index("    dist.all_reduce(total)") + 1
    assert f'mine.py", line {line}' in run.summary["error"]["traceback"]


def test_a_run_without_the_seam_says_what_it_lacks(tmp_path):
    run = launch(FOLDER / "as_it_came.py", 1, quiet=True, best=tmp_path / "best.pt")
    with pytest.raises(ValueError, match=r"left no record .* own_script.Run"):
        equality.compare(run, bring.run_one_process())


MISTAKES = [
    ("bring_evaluation", "with_ddp.py", {SHARES: PADDED}, "deals some samples twice"),
    (
        "bring_evaluation",
        "with_ddp.py",
        {', reduction="sum")': ")", "/ len(valid)": "/ (world * len(valid_loader))"},
        "a mean of means weighs a short batch",
    ),
    ("bring_fsdp", "with_ddp.py", {}, "something is not sharded"),
    (
        "bring_fsdp",
        "with_fsdp.py",
        {"get_model_state_dict(model, options=whole)": "model.state_dict()"},
        "lacks what the other ranks hold",
    ),
    (
        "bring_fsdp",
        "with_fsdp.py",
        {
            "    if isinstance(layer, nn.Conv2d | nn.Linear):": "    if layer is model[0]:",
            "fully_shard(model)  # the rest: two BatchNorm layers\n": "",
        },
        "takes those that are left",
    ),
]


@pytest.mark.parametrize(("name", "script", "changes", "says"), MISTAKES)
def test_a_typical_mistake_gets_a_helpful_message(name, script, changes, says, tmp_path):
    result = exercise.try_out(
        exercise.find(name), changed(script, changes, tmp_path / f"{name}.py")
    )
    assert not result.solved
    assert says in str(result), result
    assert "Hint: " in str(result)


@pytest.mark.solves(*(task.name for task in bring.TASKS))
@pytest.mark.parametrize("task", bring.TASKS, ids=lambda task: task.name)
def test_starting_point_is_rejected_and_solution_accepted(task, tmp_path):
    attempt = tmp_path / f"{task.name}.py"
    attempt.write_text(task.starting_point())
    assert all(wrong in attempt.read_text() for wrong in task.broken.values())
    assert not exercise.try_out(task, attempt).solved
    assert exercise.try_out(task, task.solution_path()).solved


def test_a_noted_sampler_gives_the_ids_batch_by_batch():
    loader = torch.utils.data.DataLoader(torch.arange(7), 3, drop_last=True)
    sampler = own_script.watch_loader(loader, 1)
    for _ in range(2):  # epochs
        assert [(batch.tolist(), sampler.sample_ids) for batch in loader] == [
            ([0, 1, 2], [0, 1, 2]),
            ([3, 4, 5], [3, 4, 5]),
        ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_noted_sampler_knows_what_is_in_the_samples_that_it_sees(workers):
    pairs = [(torch.arange(3.0) + number, {"kind": number}) for number in range(4)]
    loader = torch.utils.data.DataLoader(pairs, 2, drop_last=True, num_workers=workers)
    sampler = own_script.watch_loader(loader, 1)
    numbers = torch.arange(4)
    expected = data.checksums((torch.arange(3.0) + numbers[:, None], numbers))
    found = [sampler.sample_checksums for _ in loader]
    assert found == ([[], []] if workers else [expected[:2], expected[2:]])


def test_a_step_that_accumulates_has_the_ids_of_its_batches():
    loader = torch.utils.data.DataLoader(torch.arange(9), 2, drop_last=True)
    sampler = own_script.watch_loader(loader, 1, batches=2)
    batches = iter(loader)
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
        assert [*next(batches), *next(batches)] == expected
        assert sampler.sample_ids == expected


def test_the_scripts_own_parser_does_not_see_the_run_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["mine.py", "--lr", "1", "--run-dir", str(tmp_path), "--x"])
    assert own_script.begin() == tmp_path
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr")
    parser.add_argument("--x", action="store_true")
    assert parser.parse_args().x
