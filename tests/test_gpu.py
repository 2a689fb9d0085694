"""tools/gpu.py, rehearsed on the CPU: every part, what fails, and how lessons read its record."""

import os
import subprocess
import sys

import gpu
import pytest

from bootcamp import paths
from bootcamp.experiments import replay
from bootcamp.files import read_json, write_json
from bootcamp_lessons import one_device

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
REHEARSED = [name for name in gpu.PARTS if name != "mfu_small"]  # mfu_xl takes the same way
PLANTED = f"""
import sys
from pathlib import Path
import gpu

def fail(part):
    part.measure("broken", lambda: [][1])
    part.measure("sound", lambda: 2)
    text = gpu.strategies.find("gpu").read_text()
    Path("keeps_gradients.py").write_text(text.replace("optimizer.zero_grad()", "pass"))
    part.measure("other", lambda: gpu.compare("cpu", Path("keeps_gradients.py"), 1, {{}}))
    part.measure("before", lambda: gpu.json.loads(part.path.read_text()))

gpu.PARTS["fails"] = fail
for name in (*{REHEARSED}, "fails"):
    sys.argv = ["gpu.py", "--rehearse", ".", name]
    assert gpu.main() == (name == "fails")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """{part: what it recorded}, of the tool's own parts and of one that goes wrong."""
    folder = tmp_path_factory.mktemp("record")
    for name in ("psutil", "pandas", "IPython", "matplotlib"):
        (folder / f"{name}.py").write_text("raise ImportError('torch and numpy must do')")
    alone = {**os.environ, "PYTHONPATH": f"{folder}:{paths.ROOT / 'tools'}"}
    command = [sys.executable, "-c", PLANTED]
    ended = subprocess.run(command, cwd=folder, env=alone, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {path.stem: read_json(path) for path in folder.glob("*.json")}


def test_parts_are_all_rehearsed_with_torch_and_numpy_alone(recorded):
    for name in REHEARSED:
        assert (recorded[name]["status"], recorded[name]["errors"]) == ("ok", {}), name
    found = recorded["speed_small"]["found"]
    ways = {row["way"]: row for row in found["ways"]}
    assert list(ways) == list(gpu.WAYS)
    for row in ways.values():
        assert row["optimizer_bytes"] > row["gradient_bytes"] == row["parameter_bytes"]
    plain, recomputed = (ways[f"bf16{way}"] for way in (" autocast", ", activation checkpointing"))
    assert plain["activation_bytes"] > recomputed["activation_bytes"] > 0
    assert "allocate memory" in found["batches"]["out of memory"]["error"]
    rows = recorded["equality"]["found"]["equality"]
    assert [(row["script"], row["ranks"]) for row in rows] == [("gpu", 1), ("ddp", 1), ("ddp", 2)]
    for loop in ("nanoGPT-like", "course"):
        assert recorded["mfu_xl"]["found"][loop]["micro_batch"] == 2


def test_failure_is_recorded_and_the_rest_goes_on(recorded):
    fails = recorded["fails"]
    assert fails["errors"]["broken"]["error"] == "IndexError: list index out of range"
    assert "lambda" in fails["errors"]["broken"]["text"]
    assert fails["errors"]["other"]["error"].startswith("NotTheSame: ")
    before = fails["found"].pop("before")  # what is left if the part ends there
    assert (before["status"], before["found"]) == ("not finished", fails["found"])
    assert fails["found"] == {"sound": 2}


def test_record_of_a_gpu_is_shown_in_lessons_and_a_rehearsal_is_not(recorded, tmp_path):
    content, path = recorded["speed_small"], tmp_path / "h100-gpu_record" / "speed_small.json"
    path.parent.mkdir()
    write_json(path, content)
    _, caption = replay.find_gpu_result("speed_small", "ways", tmp_path)
    assert caption.startswith("No GPU has been recorded yet")
    about = {**content["about"], "gpu": {"name": "NVIDIA H100"}}
    write_json(path, {**content, "rehearsal": False, "about": about})
    ways = one_device.variant_table(tmp_path)
    assert ways.column("way") == list(gpu.WAYS)
    assert ways.caption.startswith("NVIDIA H100, torch ")
    assert ways.caption.endswith("recorded run h100-gpu_record")
    assert one_device.batch_table(tmp_path).column("ended")[1:] == ["trained", "out of memory"]
    for row in one_device.timing_table(tmp_path):
        assert all(ms > 0 for name, ms in row.items() if name.startswith("ms by"))
    _, caption = replay.find_gpu_result("speed_small", "gone", tmp_path)
    assert caption.startswith("gone: not measured. NVIDIA H100")


def test_command_without_a_gpu_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu.machine, "gpu_names", tuple)
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path), "equality"])
    assert gpu.main() == 2
    assert "There is no GPU here" in capsys.readouterr().out
