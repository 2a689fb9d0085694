"""Lesson 13: a script that is not of the course, its record, its ports and their checkers."""

import argparse

import pytest
import torch

from bootcamp.classroom import errors
from bootcamp.experiments import equality
from bootcamp.launcher.launch import Options, launch, run_command
from bootcamp.train import external
from bootcamp_lessons import exercise
from bootcamp_lessons.exercises import bring

FOLDER = bring.FOLDER


def test_the_script_as_it_came_knows_nothing_of_the_course():
    text = (FOLDER / "as_it_came.py").read_text()
    assert "bootcamp" not in text
    said = run_command(["python", str(FOLDER / "as_it_came.py"), "--epochs", "1"])
    assert said.startswith("epoch 0: loss ")


@pytest.mark.parametrize("script", ["with_ddp", "with_fsdp"])
def test_the_ports_train_the_same_on_four_ranks(script):
    run = launch(FOLDER / f"{script}.py", 4, dropout=0.0, quiet=True)
    proof = equality.same_training(run, bring.one_process())
    assert run.config["dropout"] == 0.0
    assert run.config["global_batch"] == 64
    assert len(proof.rows) == 7


def test_dropout_draws_other_numbers_on_every_rank():
    runs = [launch(FOLDER / f, n, quiet=True) for f, n in (("with_ddp.py", 2), ("recorded.py", 1))]
    failed = [row["compared"] for row in equality.compare(*runs).failed]
    assert any("loss" in what for what in failed)
    with pytest.raises(ValueError, match=r"dropout is 0.1 here and 0.0"):
        equality.compare(runs[0], bring.one_process())


USUAL = FOLDER / "usual_kind.py"
FREEZE = """        if isinstance(module, nn.BatchNorm2d):
            module.eval()
"""


def usual(ranks, tmp_path, changes=None, **how):
    """Launch the script of the usual kind, or a variant of it."""
    text = USUAL.read_text()
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "usual_kind.py"
    path.write_text(text)
    return launch(path, ranks, quiet=True, device="cpu", **how)


def test_batchnorm_frozen_in_each_epoch_trains_the_same_on_ranks(tmp_path):
    """And the model that rank 0 saved is one for a process without ranks."""
    alone, together = usual(1, tmp_path), usual(2, tmp_path)
    assert not equality.same_training(together, alone).failed
    for run in (alone, together):
        best = torch.load(run.folder / "best.pt")
        assert "1.running_mean" in best
        assert not [name for name in best if name.startswith("module.")]
    unfrozen = usual(2, tmp_path, {FREEZE: "        pass\n"})
    assert equality.compare(unfrozen, alone).failed, "the freeze is what makes them equal"


def test_a_validation_through_the_wrapper_on_rank_0_ends_the_run(tmp_path):
    """What the script avoids, and what the index of errors says to it."""
    wrapped = {"model(valid[0])": "ranks(valid[0])"}
    run = usual(2, tmp_path, wrapped, raises=False, options=Options(hang_seconds=5))
    assert run.status == "failed"
    told = errors.find(f"{run.summary['error']['message']}\n{run.summary['error']['traceback']}")
    assert told.name == "peer_is_gone"


MISTAKES = {
    "bring_ddp": [
        (
            "with_ddp.py",
            {"rank, world = dist.get_rank(), dist.get_world_size()": "rank, world = 0, 1"},
            "Ranks repeat each other's work",
        ),
        (
            "with_ddp.py",
            {"DistributedDataParallel(SpiralNet(dropout=args.dropout))": "SpiralNet(dropout=0)"},
            "Nothing is synchronised",
        ),
        (
            "with_ddp.py",
            {'dist.init_process_group("gloo")\n': ""},
            "Default process group has not been initialized",
        ),
    ],
    "bring_fsdp": [
        ("with_ddp.py", {}, "something is not sharded"),
        (
            "with_fsdp.py",
            {
                "if isinstance(layer, nn.Linear)": "if layer is model.layers[0]",
                "\nfully_shard(model)": "",
            },
            "A layer is not synchronised",
        ),
        (
            "with_fsdp.py",
            {
                "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)\n": "",
                "model = SpiralNet(dropout=args.dropout)\n": "model = SpiralNet(dropout=0)\n"
                "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)\n",
            },
            "parameters",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "script", "changes", "says"),
    [(name, *case) for name, cases in MISTAKES.items() for case in cases],
)
def test_a_typical_mistake_gets_a_helpful_message(name, script, changes, says, tmp_path):
    text = (FOLDER / script).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    attempt = tmp_path / f"{name}.py"
    attempt.write_text(text)
    result = exercise.try_out(exercise.find(name), attempt)
    assert not result.solved
    assert says in str(result), result
    assert "Hint: " in str(result)


@pytest.mark.parametrize("task", bring.TASKS, ids=lambda task: task.name)
def test_starting_point_is_rejected_and_solution_accepted(task, tmp_path):
    attempt = tmp_path / f"{task.name}.py"
    attempt.write_text(task.starting_point())
    assert not exercise.try_out(task, attempt).solved
    assert exercise.try_out(task, task.solved()).solved


def test_a_noted_sampler_gives_the_ids_batch_by_batch():
    sampler = external.Noted(torch.utils.data.SequentialSampler(range(7)), batch_size=3)
    loader = torch.utils.data.DataLoader(torch.arange(7), 3, sampler=sampler, drop_last=True)
    for _ in range(2):  # epochs
        assert [(batch.tolist(), sampler.sample_ids) for batch in loader] == [
            ([0, 1, 2], [0, 1, 2]),
            ([3, 4, 5], [3, 4, 5]),
        ]


def test_the_scripts_own_parser_does_not_see_the_run_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["mine.py", "--lr", "1", "--run-dir", str(tmp_path), "--x"])
    assert external.begin() == tmp_path
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr")
    parser.add_argument("--x", action="store_true")
    assert parser.parse_args().x
