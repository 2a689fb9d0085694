"""Notebook 07b: what lies in a checkpoint, who takes it up, and its exercise."""

import math
import subprocess
import sys

import pytest
from torch.distributed import checkpoint as dcp

from bootcamp.classroom import tasks
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.train import sharded_checkpoint
from bootcamp_lessons import checkpoints, exercise

FLAGS = {"model": "mlp", "global_batch": 24, "device": "cpu", "quiet": True}


def test_checkpoint_has_three_numbers_for_each_parameter(tmp_path):
    run = launch.launch("fsdp", 2, steps=2, save=tmp_path / "a", **FLAGS)
    place = sharded_checkpoint.find_newest(tmp_path / "a")
    note = dcp.FileSystemReader(place).read_metadata()
    entries = note.state_dict_metadata
    parameters = sum(math.prod(a.size) for k, a in entries.items() if k.startswith("model."))
    tensors = sum(key.startswith("model.") for key in entries)
    assert 4 * parameters == sum(rank["parameter_bytes"] for rank in run.ranks)
    counted = 4 * sum(math.prod(about.size) for about in entries.values())
    assert counted == 3 * 4 * parameters + 4 * tensors
    assert len(list(place.glob("*.distcp"))) == 2
    for key, about in entries.items():
        held = sum(math.prod(chunk.sizes) for chunk in about.chunks)
        assert held == math.prod(about.size), f"{key} is saved twice or not whole"


def test_loader_and_generators_go_on_where_they_were(tmp_path):
    """With dropout, and a second epoch: bit for bit. Its parameters leave as safetensors."""
    (whole,) = checkpoints.run_legs([(2, {})], tmp_path / "whole")
    export = {"export": tmp_path / "parameters.safetensors"}
    parts = checkpoints.run_legs([(2, {"steps": 3}), (2, export)], tmp_path / "parts")
    assert checkpoints.join_losses(parts) == whole["losses"]
    assert parts[1]["samples"] == whole["samples"][3:]
    assert parts[1]["sum"] == whole["sum"]
    exported = pytest.importorskip("safetensors.torch").load_file(export["export"])
    assert sum(value.double().sum().item() for value in exported.values()) == whole["sum"]


@pytest.mark.rejects("a resume without generators or the loader's position")
@pytest.mark.parametrize("forgotten", checkpoints.FORGET)
def test_losses_part_where_something_is_forgotten(forgotten, tmp_path):
    (whole,) = checkpoints.run_legs([(2, {})], tmp_path / "whole")
    both = [(2, {"steps": 3}), (2, {})]
    parts = checkpoints.run_legs(both, tmp_path / "parts", forgotten)
    assert checkpoints.join_losses(parts) != pytest.approx(whole["losses"], abs=1e-3)


def test_get_state_dict_is_bound_to_no_strategy_and_no_number_of_ranks(tmp_path):
    same = {"dropout": 0.0}
    (whole,) = checkpoints.run_legs([(2, {})], tmp_path / "whole", **same)
    relay = [(4, {"steps": 3}), (2, {"steps": 5, "wrap": "ddp"}), (3, {})]
    parts = checkpoints.run_legs(relay, tmp_path / "parts", **same)
    assert checkpoints.join_losses(parts) == pytest.approx(whole["losses"], abs=1e-5)
    assert parts[-1]["sum"] == pytest.approx(whole["sum"], abs=1e-5)


def tried(tmp_path, body):
    path = tmp_path / "mine.py"
    head = "import os, shutil, tempfile\nfrom pathlib import Path\n\nimport torch\n\n\n"
    path.write_text(f"{head}def save(state, path):\n    {body}\n")
    return exercise.try_out(exercise.find("save_for_good"), path)


SYNCED = "with open(beside, 'wb') as f: torch.save(state, f); f.flush(); os.fsync(f.fileno())"


@pytest.mark.parametrize(
    ("body", "helps"),
    [
        ("torch.save(state, path)", "straight to the checkpoint's place"),
        (
            "b = path.with_suffix('.new')\n    torch.save(state, b)\n    os.replace(b, path)",
            "nothing was synced before the rename",
        ),
        (
            f"beside = path.with_suffix('.new')\n    {SYNCED}\n"
            "    path.unlink(missing_ok=True)\n    os.rename(beside, path)",
            "os.replace needs no free place",
        ),
        (
            f"beside = Path(tempfile.mkstemp()[1])\n    {SYNCED}\n    os.replace(beside, path)",
            "write it beside its place",
        ),
        ("raise ValueError('not yet')", "ValueError: not yet"),
        ("pass", "straight to the checkpoint's place"),
    ],
    ids=["in place", "not synced", "removed first", "elsewhere", "raises", "nothing"],
)
def test_checker_of_save_for_good_names_the_mistake(tmp_path, body, helps):
    result = tried(tmp_path, body)
    assert not result.solved
    assert helps in str(result)
    assert "Hint:" in str(result)


@pytest.mark.solves("save_for_good")
def test_starting_point_is_rejected_and_solution_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    task = exercise.find("save_for_good")
    assert "Not started" in str(exercise.check("save_for_good"))
    assert "Wrote" in exercise.start("save_for_good")
    assert "torch.save(state, path)" in task.path.read_text()
    assert "still the starting point" in str(exercise.check("save_for_good"))
    assert "+    os.replace(beside, path)" in str(exercise.solution("save_for_good"))
    task.path.write_text(task.solution_path().read_text())
    result = exercise.check("save_for_good")
    assert result.solved, result
    assert "20 whole files" in str(result)


@pytest.mark.slow
def test_saving_in_place_tears_files():
    program = SRC / "snippets" / "save_for_ever.py"
    command = [sys.executable, program, "--way", "in_place", "--kills", "20"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert '"torn"' in said
