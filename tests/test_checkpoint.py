"""Saving and resuming: nothing is lost, whatever is killed when."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import warm
from trained import trained

from bootcamp.experiments import equality
from bootcamp.experiments.run_and_baseline import distance
from bootcamp.launcher import launch
from bootcamp.paths import ROOT, SRC
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.train import checkpoint, sharded_checkpoint

GPT = {"global_batch": 12, "device": "cpu", "quiet": True}
MLP = {"model": "mlp", "global_batch": 12}
FLAGS = {**GPT, **MLP}  # where the model does not matter, the quickest
RANKS = {"python": 1, "torchrun": 2, "horovodrun": 2}
WHOLE = [script for script in strategies.SCRIPTS.values() if not script.in_parts]
NOT_THE_BASELINE = ("amp", "local_sgd")
NOBODY = 99_999_999  # more than any process id
OWN = {"dp_by_hand": {"cores_per_rank": min(2, len(os.sched_getaffinity(0)))}}


# one script for each way in which a model and an optimizer are wrapped
KINDS = ["gpu", "amp", "dp_by_hand", "ddp", "ddp_mp", "local_sgd"]
KINDS += ["accelerate", "lightning", "horovod"]


@pytest.mark.parametrize("script", strategies.SCRIPTS.values(), ids=lambda s: s.name)
def test_every_script_saves_and_begins_where_it_was_saved(script):
    text = script.path.read_text()
    assert text.count("first = checkpoint.load(context, model, optimizer") == 1
    assert text.count("checkpoint.save(context, ") == 1
    assert text.count("range(first, args.steps)") == 1


def test_every_way_of_wrapping_is_tried():
    assert {script.framework for script in WHOLE} <= {
        strategies.SCRIPTS[name].framework for name in KINDS
    }


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_goes_on_where_it_was_saved(name, tmp_path):
    script = strategies.SCRIPTS[name]
    if script.framework and not launch.available(script.framework):
        pytest.skip(f"{script.framework} is not installed")
    ranks, own = RANKS[script.launcher], OWN.get(script.name, {})
    if script.name in NOT_THE_BASELINE:
        whole = trained(script.name, ranks, steps=6, **FLAGS, **own)
    else:
        whole = equality.baseline(steps=6, **MLP)
    launch.launch(script.name, ranks, steps=4, save=tmp_path / "a.pt", **FLAGS, **own)
    rest = launch.launch(script.name, ranks, steps=6, resume=tmp_path / "a.pt", **FLAGS, **own)
    assert [row["step"] for row in rest.steps] == [4, 5]
    if script.name == "local_sgd":  # the other ranks' optimizer state is nobody's but theirs
        assert rest.losses == pytest.approx(whole.losses[4:], abs=0.1)
        return
    assert rest.losses == pytest.approx(whole.losses[4:], abs=1e-5)
    first, last = (whole.ranks[0][f"fingerprint_{moment}"] for moment in ("initial", "final"))
    apart = distance(rest.ranks[0]["fingerprint_final"], last)
    assert apart < 1e-5 * distance(first, last)


@pytest.mark.parametrize(("saved_by", "taken_up_by"), [("ddp", "gpu"), ("gpu", "ddp")])
def test_a_checkpoint_is_not_bound_to_its_strategy(saved_by, taken_up_by, tmp_path):
    launch.launch(saved_by, 2 if saved_by == "ddp" else 1, steps=5, save=tmp_path / "a", **FLAGS)
    ranks = 2 if taken_up_by == "ddp" else 1
    run = launch.launch(taken_up_by, ranks, steps=10, resume=tmp_path / "a", **FLAGS)
    proof = equality.same_training(run, equality.baseline(steps=10, model="mlp", global_batch=12))
    assert not [row for row in proof.rows if row["compared"].startswith("initial parameters")]


FRAMEWORKS = {"zero": "deepspeed", "megatron": "megatron"}
CHAINS = {
    "fewer and fewer ranks": [("fsdp", 4, {}), ("fsdp", 2, {}), ("fsdp", 1, {}), ("cpu", 1, {})],
    "data parallel": [
        ("ddp", 2, {}),
        ("hsdp", 4, {"shard": 2}),
        ("zero1", 2, {}),
        ("fsdp_in_practice", 2, {"clip": 1e9}),
        ("ddp", 2, {}),
    ],
    "DeepSpeed": [
        ("fsdp", 2, {}),
        ("zero", 2, {"stage": 3}),
        ("zero", 4, {"stage": 1}),
        ("zero", 2, {"stage": 0}),
        ("cpu", 1, {}),
    ],
    "experts": [("ddp", 2, {}), ("ep", 4, {}), ("ep", 2, {}), ("cpu", 1, {})],
    "three axes": [
        ("3d", 4, {"mesh": "2x1x2", "micro_batches": 2}),
        ("fsdp_pp", 4, {"micro_batches": 2}),
        ("3d", 2, {"mesh": "1x1x2", "micro_batches": 2}),
        ("cpu", 1, {}),
    ],
    "model parallel": [
        ("pp", 2, {"schedule": "interleaved"}),
        ("tp", 2, {"sequence_parallel": True}),
        ("ddp_pp", 4, {"micro_batches": 2}),
        ("fsdp_tp", 4, {}),
        ("megatron", 2, {}),
        ("cpu", 1, {}),
    ],
}


@pytest.mark.parametrize(
    ("chain", "optimizer"),
    [
        ("fewer and fewer ranks", "adamw"),
        ("data parallel", "sgd"),
        ("DeepSpeed", "adamw"),
        ("DeepSpeed", "sgd"),
        ("experts", "adamw"),
        ("model parallel", "adamw"),
        ("three axes", "adamw"),
    ],
)
def test_each_strategy_takes_up_what_another_has_saved(chain, optimizer, tmp_path):
    """Two steps each; the losses are those of one run that was never stopped.

    Of the model that ranks hold parts of, else of the quickest one.
    """
    own = {"model parallel": {}, "three axes": {}, "experts": {"model": "moe"}}
    model = own.get(chain, {"model": "mlp"})
    links = CHAINS[chain]
    links = [link for link in links if launch.available(FRAMEWORKS.get(link[0], "torch"))]
    steps = 2 * len(links)
    whole = equality.baseline(steps=steps, global_batch=12, optimizer=optimizer, **model)
    flags, losses = {**GPT, **model, "optimizer": optimizer}, []
    for number, (script, ranks, own) in enumerate(links):
        places = {"save": tmp_path / str(number)}
        if number:
            places["resume"] = tmp_path / str(number - 1)
        run = launch.launch(script, ranks, steps=2 * (number + 1), **places, **own, **flags)
        assert [row["step"] for row in run.steps] == [2 * number, 2 * number + 1]
        losses += run.losses
    assert losses == pytest.approx(whole.losses, abs=1e-5)
    first, last = (whole.ranks[0][f"fingerprint_{moment}"] for moment in ("initial", "final"))
    apart = distance(run.ranks[0]["fingerprint_final"], last)
    assert apart < 1e-5 * distance(first, last)


@pytest.mark.parametrize(("script", "ranks"), [("gpu", 1), ("fsdp", 2)])
def test_a_checkpoint_written_in_the_background_is_of_its_own_step(script, ranks, tmp_path):
    """Training goes on while it is written, and must not change what is written."""
    places = {"save": tmp_path / "a", "save_every": 1, "save_async": True}
    launch.launch(script, ranks, steps=6, **places, **FLAGS)
    rest = launch.launch(script, ranks, steps=8, resume=tmp_path / "a", **FLAGS)
    whole = equality.baseline(steps=8, model="mlp", global_batch=12)
    assert rest.losses == pytest.approx(whole.losses[6:], abs=1e-5)
    if script == "fsdp":  # the one before was written while the model changed
        shutil.rmtree(tmp_path / "a" / "step-6")
        before = launch.launch(script, ranks, steps=8, resume=tmp_path / "a", **FLAGS)
        assert before.losses == pytest.approx(whole.losses[5:], abs=1e-5)


def test_a_folder_holds_the_two_newest_and_nothing_half_written(tmp_path):
    left = tmp_path / "a" / f".step-3.{NOBODY}.part"  # as a killed run leaves it
    left.mkdir(parents=True)
    (left / "__0_0.distcp").write_bytes(b"half of it")
    launch.launch("fsdp", 2, steps=7, save=tmp_path / "a", save_every=2, **FLAGS)
    assert sorted(os.listdir(tmp_path / "a")) == ["step-6", "step-7"]
    settings = json.loads((tmp_path / "a" / "step-7" / "settings.json").read_text())
    assert settings["steps_done"] == 7


def test_what_a_living_run_writes_is_left_alone(tmp_path):
    mine = tmp_path / "a" / f".step-3.{os.getppid()}.part"
    mine.mkdir(parents=True)
    sharded_checkpoint.clear_unfinished(tmp_path / "a")
    assert mine.exists()
    file = tmp_path / f".b.{os.getppid()}.part"
    file.write_bytes(b"half of it")
    checkpoint.write_whole(tmp_path / "b", lambda into: into.write(b"all of it"))
    assert file.exists()


def test_mixed_precision_takes_up_what_has_no_scaler(tmp_path):
    launch.launch("gpu", steps=3, save=tmp_path / "a", **FLAGS)
    run = launch.launch("amp", steps=5, resume=tmp_path / "a", **FLAGS)
    assert [row["step"] for row in run.steps] == [3, 4]


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_what_is_no_parameter_is_kept_too(tmp_path):
    """The running statistics of batch normalisation, through DeepSpeed's flat parts and back."""
    flags = {**FLAGS, "model": "resnet50", "global_batch": 4, "steps": 2}
    launch.launch("gpu", save=tmp_path / "a", **flags)
    more = {**flags, "steps": 3, "lr": 1e-12}
    launch.launch("zero", 2, stage=1, resume=tmp_path / "a", save=tmp_path / "b", **more)
    old, new = (torch.load(tmp_path / name, weights_only=True)["model"] for name in "ab")
    assert old.keys() == new.keys()
    counts = [name for name in old if name.endswith("num_batches_tracked")]
    assert counts
    assert all(new[name] == old[name] + 1 for name in counts)


def test_a_place_of_the_other_kind_is_refused_at_the_start(tmp_path):
    (tmp_path / "folder").mkdir()
    assert "this is a folder, and this script saves into a file" in refusal(
        save=tmp_path / "folder"
    )
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(launch.RunRefused, match="this is a file, and this script saves into a fol"):
        launch.launch("fsdp", 2, steps=10, save=tmp_path / "file", **FLAGS)


@pytest.mark.parametrize(
    ("steps_of_rank_1", "sentence"),
    [(None, "there is no such file"), (3, "not all ranks find the same there")],
)
def test_ranks_that_find_different_things_train_nothing(steps_of_rank_1, sentence, tmp_path):
    """As on two hosts without a disk in common."""
    launch.launch("gpu", steps=2, save=tmp_path / "a0", **FLAGS)
    if steps_of_rank_1:
        launch.launch("gpu", steps=steps_of_rank_1, save=tmp_path / "a1", **FLAGS)
    line = "first = checkpoint.load(context, model, optimizer)"
    apart = variant("ddp", "own_disks", {line: f"args.resume += str(rank)\n{line}"})
    with pytest.raises(launch.RunRefused, match=sentence) as error:
        launch.launch(apart, 2, steps=5, resume=tmp_path / "a", **FLAGS)
    assert len(str(error.value).splitlines()) == 1


def test_what_was_saved_last_is_the_newest_whatever_its_step(tmp_path):
    """A new run in the folder of an old one, which had come further."""
    launch.launch("fsdp", 2, steps=4, save=tmp_path / "a", **FLAGS)
    launch.launch("fsdp", 2, steps=4, save=tmp_path / "a", save_every=3, seed=1, **FLAGS)
    assert sorted(os.listdir(tmp_path / "a")) == ["step-3", "step-4-again-3"]
    shutil.rmtree(tmp_path / "a" / "step-4-again-3")
    rest = launch.launch("fsdp", 2, steps=5, resume=tmp_path / "a", seed=1, **FLAGS)
    assert rest.losses == pytest.approx(
        equality.baseline(steps=5, model="mlp", global_batch=12, seed=1).losses[3:], abs=1e-5
    )


def test_a_folder_with_a_piece_missing_is_refused_in_one_sentence(tmp_path):
    launch.launch("fsdp", 2, steps=2, save=tmp_path / "a", **FLAGS)
    (tmp_path / "a" / "step-2" / "__1_0.distcp").unlink()
    assert "no checkpoint of this course" in refusal(resume=tmp_path / "a")


def test_a_half_written_folder_is_never_taken_up(tmp_path):
    launch.launch("fsdp", 2, steps=4, save=tmp_path / "a", **FLAGS)
    (tmp_path / "a" / "step-4").rename(tmp_path / "a" / f".step-4.{NOBODY}.part")
    assert "there is no such file" in refusal(resume=tmp_path / "a")


@pytest.mark.rejects("a resume without the optimizer's state")
def test_a_wrong_resume_is_no_proof(tmp_path):
    """The optimizer's state left behind: the losses tell."""
    launch.launch("gpu", steps=5, save=tmp_path / "a", optimizer="sgd", **FLAGS)
    saved = torch.load(tmp_path / "a", weights_only=True)
    saved["optimizer"] = {}
    torch.save(saved, tmp_path / "a")
    run = launch.launch("gpu", steps=10, resume=tmp_path / "a", optimizer="sgd", **FLAGS)
    base = equality.baseline(steps=10, model="mlp", global_batch=12, optimizer="sgd")
    failed = equality.compare(run, base).failed
    assert {row["compared"].split(" (")[0] for row in failed} >= {
        "largest difference of a step's loss"
    }


def test_saves_when_due_and_after_the_last_step(tmp_path):
    launch.launch("gpu", steps=5, save=tmp_path / "a", save_every=2, **FLAGS)
    assert torch.load(tmp_path / "a", weights_only=True)["steps_done"] == 5
    assert os.listdir(tmp_path) == ["a"]


def refusal(**flags):
    with pytest.raises(launch.RunRefused) as error:
        launch.launch("gpu", steps=10, **{**FLAGS, **flags})
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_refuses_what_it_cannot_resume(tmp_path):
    launch.launch("gpu", steps=3, save=tmp_path / "a", **FLAGS)
    older = torch.load(tmp_path / "a", weights_only=True)
    del older["format"]
    torch.save(older, tmp_path / "older")
    assert "no checkpoint of this version of the course" in refusal(resume=tmp_path / "older")
    half = tmp_path / "half"
    half.write_bytes((tmp_path / "a").read_bytes()[:-1000])
    assert "no such file" in refusal(resume=tmp_path / "nothing")
    assert "no checkpoint of this course" in refusal(resume=half)
    assert "saved with --model mlp, this run has gpt" in refusal(resume=tmp_path / "a", model="gpt")
    with pytest.raises(launch.RunRefused, match="saved after 3 steps, and this run ends after 3"):
        launch.launch("gpu", steps=3, resume=tmp_path / "a", **FLAGS)
    assert "--save-every 0" in refusal(save=tmp_path / "b", save_every=0)


def test_one_command_line_serves_the_first_start_and_every_restart(tmp_path):
    kept = {"save": tmp_path / "a", "resume": tmp_path / "a", **FLAGS}
    first = launch.launch("gpu", steps=4, **kept)
    again = launch.launch("gpu", steps=6, **kept)
    assert [row["step"] for row in first.steps + again.steps] == list(range(6))


@pytest.mark.slow
def test_by_hand_a_resumed_run_goes_on_in_its_folder(tmp_path):
    command = [warm.python(), str(SRC / "_train_gpu.py"), "--global-batch", "12", "--model", "mlp"]
    command += ["--run-dir", str(tmp_path / "run"), "--save", str(tmp_path / "a")]
    for steps in ("4", "8"):
        resume = ["--resume", str(tmp_path / "a")]
        subprocess.run([*command, "--steps", steps, *resume], check=True, cwd=ROOT)
    run = launch.Run(tmp_path / "run")
    whole = equality.baseline(steps=8, model="mlp", global_batch=12)
    assert not equality.compare(run, whole).failed
    refused = subprocess.run([*command, "--steps", "4"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from bootcamp.train import checkpoint

def write(file):
    file.write(b"half of the new ")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.write_whole(Path(sys.argv[1]), write)
"""


@pytest.mark.slow
def test_a_kill_while_saving_leaves_the_last_good_one(tmp_path):
    path = tmp_path / "a"
    checkpoint.write_whole(path, lambda file: file.write(b"the old one"))
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)])
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"the old one"
    assert len(os.listdir(tmp_path)) == 2  # and the half one beside it
    checkpoint.write_whole(path, lambda file: file.write(b"the new one"))
    assert path.read_bytes() == b"the new one"
    assert os.listdir(tmp_path) == ["a"]


def test_synced_before_it_takes_its_place(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda *a: (order.append("rename"), replace(*a)))
    checkpoint.write_whole(tmp_path / "a", lambda file: file.write(b"x"))
    assert order == ["sync", "rename", "sync"]  # the file, its name, the folder


def test_a_kill_right_after_a_save_loses_no_row_of_what_was_saved(tmp_path):
    """A loss is read a step later; the checkpoint of its step must not be there before its row."""
    saves = "checkpoint.save(context, step, model, optimizer)"
    dies = {saves: f"{saves}\nif step == 3:\n    import os\n    os._exit(9)"}
    script, flags = variant("ddp", "ddp_dies_after_save", dies), {**FLAGS, "steps": 6}
    run = launch.launch(script, 2, save=tmp_path / "a.pt", save_every=2, raises=False, **flags)
    assert run.status == "failed"
    assert [row["step"] for row in run.steps] == [0, 1, 2, 3]
