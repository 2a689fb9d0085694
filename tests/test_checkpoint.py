"""Saving and resuming: nothing is lost, whatever is killed when."""

import json
import os
import shutil
import signal
from argparse import Namespace

import pytest
import torch
import warm
from strategy_table import RELAYS
from trained import baseline, trained

from bootcamp.experiments import equality
from bootcamp.experiments.run_and_baseline import distance
from bootcamp.launcher import launch
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.train import checkpoint, models, optimizers, sharded_checkpoint
from bootcamp_lessons import checkpoints, exercise
from bootcamp_lessons.exercises import training_scripts

MLP = {"model": "mlp", "global_batch": 12}
FLAGS = {**MLP, "device": "cpu", "quiet": True}  # where the model does not matter, the quickest
NOBODY = 99_999_999  # more than any process id


# Every script takes up what another one has saved


@pytest.mark.parametrize("name", RELAYS)
def test_relay_of_scripts_trains_what_one_run_trains(name, tmp_path):
    """Two steps each: the second one's loss has the optimizer's state that was loaded."""
    flags, *members = RELAYS[name]
    flags = {"global_batch": 12, **flags}
    members = [case for case in members if not case.missing]
    whole = baseline(steps=2 * len(members), **flags)
    place = None
    for number, case in enumerate(members):
        places = {"resume": place} if place else {}
        place = places["save"] = tmp_path / str(number)
        own = {} if strategies.SCRIPTS[case.script].own_device else {"device": "cpu"}
        own |= {**flags, **case.flags, "steps": 2 * number + 2, "quiet": True}
        with warm.workers():
            run = launch.launch(case.script, case.ranks, **places, **own)
        assert [row["step"] for row in run.steps] == [2 * number, 2 * number + 1]
        expected = whole.losses[2 * number : 2 * number + 2]
        assert run.losses == pytest.approx(expected, abs=1e-5), f"{case} resumed another training"
    first, last = (whole.ranks[0][f"fingerprint_{moment}"] for moment in ("initial", "final"))
    apart = distance(run.ranks[0]["fingerprint_final"], last)
    assert apart < 1e-5 * distance(first, last)


def test_relays_have_every_script_resume():
    resume = {case.script for _, _, *cases in RELAYS.values() for case in cases}
    assert set(strategies.SCRIPTS) - resume == {"amp", "fsdp_fp8"}, "whose numbers are rounded"


def test_gathers_in_8_bits_take_up_their_own_on_another_number_of_ranks(tmp_path):
    flags = {**FLAGS, "model": "gpt", "dtype": "float64"}
    launch.launch("fsdp_fp8", 2, steps=2, save=tmp_path / "a", **flags)
    rest = launch.launch("fsdp_fp8", 4, steps=4, resume=tmp_path / "a", **flags)
    whole = trained("fsdp_fp8", 4, steps=4, **flags)
    assert rest.losses == pytest.approx(whole.losses[2:], abs=1e-5)


def test_mixed_precision_takes_up_its_own_and_what_has_no_scaler(tmp_path):
    flags, a, b = {**FLAGS, "autocast": "float16"}, tmp_path / "a", tmp_path / "b"
    launch.launch("amp", steps=2, save=a, **flags)
    whole = trained("amp", steps=4, **flags)
    for counted_on in (True, False):
        rest = launch.launch("amp", steps=4, resume=a, save=b, **flags)
        assert rest.losses == pytest.approx(whole.losses[2:], abs=1e-5)
        good = torch.load(b, weights_only=True)["scaler"]["_growth_tracker"]
        assert good == (4 if counted_on else 2), "good steps are counted from the first run on"
        saved = torch.load(a, weights_only=True)
        torch.save({name: saved[name] for name in saved if name != "scaler"}, a)


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_running_statistics_are_kept_too(tmp_path):
    """Those of batch normalisation, through DeepSpeed's flat parts and back."""
    flags = {**FLAGS, "model": "resnet50", "global_batch": 4, "steps": 2}
    launch.launch("gpu", save=tmp_path / "a", **flags)
    more = {**flags, "steps": 3, "lr": 1e-12}
    launch.launch("zero", 2, stage=1, resume=tmp_path / "a", save=tmp_path / "b", **more)
    old, new = (torch.load(tmp_path / name, weights_only=True)["model"] for name in "ab")
    assert old.keys() == new.keys()
    counts = [name for name in old if name.endswith("num_batches_tracked")]
    assert counts
    assert all(new[name] == old[name] + 1 for name in counts)


@pytest.mark.rejects("a resume without the optimizer's state")
def test_proof_rejects_a_resume_without_the_optimizers_state(tmp_path):
    """The losses tell; with it, the proof of a resumed run needs no initial parameters."""
    launch.launch("gpu", steps=5, save=tmp_path / "a", optimizer="sgd", **FLAGS)
    saved = torch.load(tmp_path / "a", weights_only=True)
    torch.save({**saved, "optimizer": {}}, tmp_path / "b")
    runs = [
        launch.launch("ddp", 2, steps=10, resume=tmp_path / name, optimizer="sgd", **FLAGS)
        for name in "ab"
    ]
    whole = baseline(steps=10, optimizer="sgd", **MLP)
    right, wrong = (equality.compare(run, whole) for run in runs)
    assert not right.failed
    assert not [row for row in right.rows if row["compared"].startswith("initial parameters")]
    failed = [row["compared"] for row in wrong.failed]
    assert any(row.startswith("largest difference of a step's loss") for row in failed)


# What a save writes, and when


@pytest.mark.parametrize(("script", "ranks"), [("gpu", 1), ("fsdp", 2)])
def test_checkpoint_written_in_the_background_is_of_its_own_step(script, ranks, tmp_path):
    """Training goes on while it is written, and must not change what is written."""
    places = {"save": tmp_path / "a", "save_every": 1, "save_async": True}
    launch.launch(script, ranks, steps=6, **places, **FLAGS)
    whole, first = baseline(steps=8, **MLP), 6
    if script == "fsdp":  # the one before was written while the model changed
        shutil.rmtree(tmp_path / "a" / "step-6")
        first = 5
    rest = launch.launch(script, ranks, steps=8, resume=tmp_path / "a", **FLAGS)
    assert rest.losses == pytest.approx(whole.losses[first:], abs=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What seven steps of FSDP leave where a killed run had left a half-written folder."""
    place = tmp_path_factory.mktemp("saved") / "a"
    left = place / f".step-3.{NOBODY}.part"
    left.mkdir(parents=True)
    (left / "__0_0.distcp").write_bytes(b"half of it")
    launch.launch("fsdp", 2, steps=7, save=place, save_every=2, **FLAGS)
    return place


def test_folder_holds_the_two_newest_and_nothing_half_written(folder):
    assert sorted(os.listdir(folder)) == ["step-6", "step-7"]
    assert json.loads((folder / "step-7" / "settings.json").read_text())["steps_done"] == 7


def test_newest_is_what_was_saved_last_whatever_its_step(folder, tmp_path):
    """A new run in the folder of an old one, which had come further."""
    copied = shutil.copytree(folder, tmp_path / "a")
    more = {"save": copied, "save_every": 6, "seed": 1}
    launch.launch("fsdp", 2, steps=7, **more, **FLAGS)
    assert sorted(os.listdir(copied)) == ["step-6-again-5", "step-7-again-6"]
    shutil.rmtree(copied / "step-7-again-6")
    rest = launch.launch("fsdp", 2, steps=8, resume=copied, seed=1, **FLAGS)
    assert rest.losses == pytest.approx(baseline(steps=8, seed=1, **MLP).losses[6:], abs=1e-5)


def test_what_a_living_run_writes_is_left_alone(tmp_path):
    mine = tmp_path / "a" / f".step-3.{os.getppid()}.part"
    mine.mkdir(parents=True)
    sharded_checkpoint.clear_unfinished(tmp_path / "a")
    assert mine.exists()
    file = tmp_path / f".b.{os.getppid()}.part"
    file.write_bytes(b"half of it")
    checkpoint.write_whole(tmp_path / "b", lambda into: into.write(b"all of it"))
    assert file.exists()


def test_one_command_line_serves_the_first_start_and_every_restart(tmp_path):
    kept = {"save": tmp_path / "a", "save_every": 3, "resume": tmp_path / "a", **FLAGS}
    first = launch.launch("gpu", steps=4, **kept)
    assert torch.load(tmp_path / "a", weights_only=True)["steps_done"] == 4, "the last step too"
    again = launch.launch("gpu", steps=6, **kept)
    assert [row["step"] for row in first.steps + again.steps] == list(range(6))
    assert os.listdir(tmp_path) == ["a"]


# What can't be taken up, or written to, is refused in one sentence


@pytest.fixture(scope="module")
def places(folder, tmp_path_factory):
    """A checkpoint after three steps, and what may have become of one; {name: its path}."""
    place = tmp_path_factory.mktemp("saved")
    launch.launch("gpu", steps=3, save=place / "file", optimizer="sgd", **FLAGS)
    older = torch.load(place / "file", weights_only=True)
    del older["format"]
    torch.save(older, place / "older")
    (place / "half").write_bytes((place / "file").read_bytes()[:-1000])
    for name in ("parts", "unfinished"):
        shutil.copytree(folder, place / name)
    for step in ("step-6", "step-7"):
        (place / "parts" / step / "__1_0.distcp").unlink()
        left = place / "unfinished"
        (left / step).rename(left / f".{step}.{NOBODY}.part")
    return {path.name: path for path in place.iterdir()} | {"folder": folder}


@pytest.mark.parametrize(
    ("flag", "place", "says", "more"),
    [
        ("resume", "older", "no checkpoint of this version of the course", {}),
        ("resume", "half", "no checkpoint of this course", {}),
        ("resume", "nothing", "no such file", {}),
        ("resume", "file", "saved with --model mlp, this run has gpt", {"model": "gpt"}),
        ("resume", "file", "saved after 3 steps, and this run ends after 3", {"steps": 3}),
        ("resume", "parts", "no checkpoint of this course", {"optimizer": "adamw"}),
        ("resume", "unfinished", "there is no such file", {}),
        ("save", "folder", "this is a folder, and this script saves into a file", {}),
        ("save", "file", "this is a file, and this script saves", {"axes": ("pipeline",)}),
    ],
)
def test_place_that_does_not_fit_is_refused(places, flag, place, says, more, capsys):
    """Asked as a script of one rank does, of an MLP that was given these flags."""
    given = {"model": "mlp", "size": "tiny", "kv_heads": None, "dtype": "float32", "seed": 0}
    given |= {"optimizer": "sgd", "lr": 0.1, "steps": 10, "save": None, "resume": None}
    given |= {flag: places.get(place, places["file"].with_name(place)), **more}
    axes = given.pop("axes", ("data",))
    args = Namespace(**given)
    model = models.build(args)
    optimizer = optimizers.build(args, model.parameters())
    with pytest.raises(SystemExit, match="2"):
        checkpoint.load(Namespace(args=args, axes=axes), model, optimizer)
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("steps_of_rank_1", "sentence"),
    [(None, "there is no such file"), (5, "not all ranks find the same there")],
)
def test_ranks_that_find_different_things_train_nothing(
    steps_of_rank_1, sentence, places, tmp_path
):
    """As on two hosts without a disk in common."""
    shutil.copy(places["file"], tmp_path / "a0")
    if steps_of_rank_1:
        saved = torch.load(places["file"], weights_only=True)
        other = {**saved, "steps_done": steps_of_rank_1}
        torch.save(other, tmp_path / "a1")
    line = "first = checkpoint.load(context, model, optimizer)"
    apart = variant("ddp", "own_disks", {line: f"args.resume += str(rank)\n{line}"})
    flags = {**FLAGS, "optimizer": "sgd", "steps": 9}
    with pytest.raises(launch.RunRefused, match=sentence) as error:
        launch.launch(apart, 2, resume=tmp_path / "a", **flags)
    assert len(str(error.value).splitlines()) == 1


# Kills


def test_kill_while_saving_leaves_the_last_good_one(tmp_path):
    path = tmp_path / "a"
    checkpoint.write_whole(path, lambda file: file.write(b"the old one"))

    def die(file):
        file.write(b"half of the new ")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    if not (child := os.fork()):
        checkpoint.write_whole(path, die)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert path.read_bytes() == b"the old one"
    assert len(os.listdir(tmp_path)) == 2  # and the half one beside it
    checkpoint.write_whole(path, lambda file: file.write(b"the new one"))
    assert path.read_bytes() == b"the new one"
    assert os.listdir(tmp_path) == ["a"]


def test_file_is_synced_before_it_takes_its_place(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda *a: (order.append("rename"), replace(*a)))
    checkpoint.write_whole(tmp_path / "a", lambda file: file.write(b"x"))
    assert order == ["sync", "rename", "sync"]  # the file, its name, the folder


def test_kill_right_after_a_save_loses_no_row_of_what_was_saved(tmp_path):
    """A loss is read a step later; the checkpoint of its step must not be there before its row."""
    saves = "checkpoint.save(context, step, model, optimizer)"
    dies = {saves: f"{saves}\nif step == 3:\n    import os\n    os._exit(9)"}
    script, flags = variant("ddp", "ddp_dies_after_save", dies), {**FLAGS, "steps": 6}
    run = launch.launch(script, 2, save=tmp_path / "a.pt", save_every=2, raises=False, **flags)
    assert run.status == "failed"
    assert [row["step"] for row in run.steps] == [0, 1, 2, 3]


# Lesson 07b, whose cells check what a file holds, who takes it up and what must not be forgotten


def test_loader_and_generators_go_on_where_they_were(tmp_path):
    """With dropout, and a second epoch: bit for bit. Its parameters leave as safetensors."""
    (whole,) = checkpoints.run_legs([(2, {})], tmp_path / "whole")
    export = {"export": tmp_path / "parameters.safetensors"}
    parts = checkpoints.run_legs([(2, {"steps": 3}), (2, export)], tmp_path / "parts")
    assert sum((leg["losses"] for leg in parts), []) == whole["losses"]
    exported = pytest.importorskip("safetensors.torch").load_file(export["export"])
    assert sum(value.double().sum().item() for value in exported.values()) == whole["sum"]


SYNCED = "with open(beside, 'wb') as f: torch.save(state, f); f.flush(); os.fsync(f.fileno())"
ELSEWHERE = f"beside = Path(tempfile.mkstemp()[1])\n    {SYNCED}"
WRONG = {  # what the checker answers: how a function saves
    "straight to the checkpoint's place": "torch.save(state, path)",
    "nothing was synced before the rename": "torch.save(state, beside); os.replace(beside, path)",
    "os.replace needs no free place": f"{SYNCED}; path.unlink(True); os.rename(beside, path)",
    "write it beside its place": f"{ELSEWHERE}; os.replace(beside, path)",
}
SAVE = """import os, tempfile
from pathlib import Path

import torch

def save(state, path):
    beside = path.with_suffix(".new")
    """


@pytest.mark.solves("save_for_good")
def test_exercise_accepts_its_solution_and_names_what_a_way_to_save_gets_wrong(
    tmp_path, monkeypatch
):
    """Each of the wrong ways shows in what one save does, however few are killed."""
    path, task = tmp_path / "mine.py", exercise.find("save_for_good")
    assert exercise.try_out(task, task.solution_path()).solved
    monkeypatch.setattr(training_scripts, "KILLS", 2)
    texts = {says: SAVE + lines for says, lines in WRONG.items()}
    for says, text in {task.hint: task.starting_point(), **texts}.items():
        path.write_text(text)
        result = exercise.try_out(task, path)
        assert not result.solved
        assert says in str(result)
        assert task.hint in str(result)
