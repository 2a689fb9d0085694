"""tools/gpu.py, rehearsed on the CPU: every part, what fails, and how lessons read its record."""

import os
import subprocess
import sys

import gpu
import psutil
import pytest

from bootcamp import paths
from bootcamp.costs import model_shapes
from bootcamp.experiments import replay
from bootcamp.files import read_json, write_json
from bootcamp_lessons import one_device

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FOREIGN = ("psutil", "pandas", "IPython", "matplotlib")
REHEARSED = [name for name in gpu.PARTS if name != "mfu_small"]  # mfu_xl takes the same way
ENDLESS = "86398.75"  # seconds of sleep, by which what is left is found
PLANTED = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {str(paths.ROOT / "tools")!r})
import gpu

def fails(part):
    part.measure("broken", lambda: [][1])
    part.measure("sound", lambda: 2)
    text = gpu.strategies.find("gpu").read_text()
    Path("keeps_gradients.py").write_text(text.replace("optimizer.zero_grad()", "pass"))
    part.measure("other", lambda: gpu.compare("cpu", Path("keeps_gradients.py"), 1, {{}}))

def sleeps(part):
    part.measure("before", lambda: 1)
    subprocess.Popen(["sleep", "{ENDLESS}"])
    time.sleep({ENDLESS})

def dies(part):
    os.kill(os.getpid(), signal.SIGSEGV)

gpu.PARTS |= {{"fails": (fails, 1), "sleeps": (sleeps, 1), "dies": (dies, 1)}}
code = gpu.main()
gpu.run_part("sleeps", Path(sys.argv[2]), True, limit=2)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """{part: what it recorded}, of the tool's own parts and of those that go wrong."""
    folder = tmp_path_factory.mktemp("record")
    for name in FOREIGN:
        (folder / f"{name}.py").write_text("raise ImportError('torch and numpy must do')")
    command = [
        sys.executable,
        "-c",
        PLANTED,
        "--rehearse",
        str(folder),
        *REHEARSED,
        "fails",
        "dies",
        "--limit=120",  # of a part: pytest would end this process alone, and not what it started
    ]
    alone = {**os.environ, "PYTHONPATH": str(folder)}
    ended = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr[-3000:]
    return {path.stem: read_json(path) for path in folder.glob("*.json")}


def test_parts_are_all_rehearsed_with_torch_and_numpy_alone(recorded):
    for name in REHEARSED:
        assert (recorded[name]["status"], recorded[name]["errors"]) == ("ok", {}), name
        assert recorded[name]["rehearsal"]
    found = recorded["speed_small"]["found"]
    ways = {row["way"]: row for row in found["ways"]}
    assert list(ways) == list(gpu.WAYS)
    for row in ways.values():
        assert row["optimizer_bytes"] > row["gradient_bytes"] == row["parameter_bytes"]
    plain, recomputed = (ways[f"bf16{way}"] for way in (" autocast", ", activation checkpointing"))
    assert plain["activation_bytes"] > recomputed["activation_bytes"] > 0
    assert found["batches"]["then"]["loss"] == found["batches"]["rows"][0]["loss"]
    assert "allocate memory" in found["batches"]["out of memory"]["error"]
    rows = recorded["equality"]["found"]["equality"]
    assert [(row["script"], row["ranks"]) for row in rows] == [("gpu", 1), ("ddp", 1), ("ddp", 2)]
    for loop in ("nanoGPT-like", "course"):
        assert recorded["mfu_xl"]["found"][loop]["micro_batch"] == 2


def test_failure_is_recorded_and_the_rest_goes_on(recorded):
    fails, sleeps, dies = (recorded[name] for name in ("fails", "sleeps", "dies"))
    assert {part["status"] for part in (fails, dies)} == {"failed"}
    assert fails["errors"]["broken"]["error"] == "IndexError: list index out of range"
    assert "lambda" in fails["errors"]["broken"]["text"]
    assert fails["errors"]["other"]["error"].startswith("NotTheSame: ")
    assert fails["found"] == {"sound": 2}
    assert dies["errors"]["the part"]["error"] == "it ended with code -11"
    assert (sleeps["status"], sleeps["found"]) == ("overrun", {"before": 1})
    commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert [each for each in commands if each and ENDLESS in each] == []


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
    ended = one_device.batch_table(tmp_path).column("ended")
    assert ended == ["trained", "trained", "out of memory"]
    for row in one_device.timing_table(tmp_path):
        assert all(ms > 0 for name, ms in row.items() if name.startswith("ms by"))
    _, caption = replay.find_gpu_result("speed_small", "gone", tmp_path)
    assert caption.startswith("gone: not measured. NVIDIA H100")


def test_flops_are_those_of_the_theory():
    for model, vocabulary in (("gpt", gpu.VOCABULARY), ("gpt-2", gpu.GPT2_VOCABULARY)):
        forward = sum(layer.flops for layer in model_shapes.layers(model, "medium"))
        assert gpu.flops_per_sample(gpu.GPT["medium"], vocabulary) == 3 * forward


def test_command_without_a_gpu_says_so_and_plans(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu.machine, "gpu_names", tuple)
    for arguments, said in (([str(tmp_path)], "There is no GPU here"), (["--plan"], "OUT mfu_xl")):
        monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
        gpu.main()
        assert said in capsys.readouterr().out
