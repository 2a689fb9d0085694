"""What the GPU record relies on: a limit for a call, Pythons without psutil, compiled attention."""

import importlib.util
import subprocess
import sys
import time
import types

import gpu_record
import psutil
import pytest

from bootcamp.paths import ROOT

pytestmark = pytest.mark.slow


def test_parts_of_a_call_share_its_seconds(monkeypatch, tmp_path):
    limits = []

    def part(name, folder, rehearse, limit):
        limits.append(limit)
        return "ok", 0.0

    monkeypatch.setattr(gpu_record, "_prepare", lambda *_: None)
    monkeypatch.setattr(gpu_record, "run_part", part)
    moments = iter((0.0, 0.0, 400.0, 600.0))
    clock = types.SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr(gpu_record, "time", clock)
    parts = ["mfu", "faults", "constants"]
    gpu_record.record(tmp_path, parts, True, 480.0, within=570.0)
    assert limits == [480.0, 170.0, 1.0]
    moments = iter((0.0, 60.0, 1000.0, 2000.0))  # torch's import, and parts that overrun
    gpu_record.record(tmp_path, parts, True, 480.0)
    assert limits[3:] == [480.0] * 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["file"], "file can't be written (File exists): name another FOLDER."),
        (["file/out"], "can't be written (Not a directory): name another FOLDER."),
        ([""], "name the FOLDER for the record, or say --plan"),
        (["out", "gone"], "no part gone: choose from equality, speed_small,"),
        (["out", "--limit", "0"], "--limit and --within are seconds, more than 0"),
        (["out", "--within", "-5"], "--limit and --within are seconds, more than 0"),
    ],
)
def test_what_can_not_be_recorded_is_refused_at_once(wrong, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu_record.py", "--rehearse", *wrong])
    monkeypatch.setattr(gpu_record, "record", lambda *_: pytest.fail("a part began"))
    try:
        code = gpu_record.main()
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert says in "".join(capsys.readouterr())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_psutil_proc_says_the_same():
    path = ROOT / "tools" / "gpu_parts" / "without_psutil" / "psutil.py"
    spec = importlib.util.spec_from_file_location("stand_in", path)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    child = subprocess.Popen(["sleep", "30"], env={"MARK": "a=b"}, stdin=subprocess.DEVNULL)
    try:
        time.sleep(0.1)  # it has become sleep
        real, ours = psutil.Process(child.pid), plain.Process(child.pid)
        for name in ("ppid", "num_threads", "create_time", "cmdline", "environ"):
            assert getattr(ours, name)() == getattr(real, name)(), name
        assert ours.memory_info().rss == real.memory_info().rss
        assert child.pid in plain.pids()
        child.kill()
        while ours.status() != plain.STATUS_ZOMBIE:
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    with pytest.raises(plain.Error):
        plain.Process(child.pid)


TRAINERS = f"""
import sys
sys.path[:0] = {[str(ROOT / "tools"), str(ROOT / "src")]!r}
import torch
from torch._dynamo.backends.common import aot_autograd
from gpu_parts.device import MINIATURE, Device
from gpu_parts.loops import Trainer, Way

found = []
def compiled(graph, _):
    found.append(sum("dot_product" in str(node.target) for node in graph.graph.nodes))
    return graph

device, backend = Device(True), aot_autograd(fw_compiler=compiled)
device.compile = lambda function: torch.compile(function, backend=backend, dynamic=False)
ways = [Way(compiled=True, attention=kernel) for kernel in ("flash", "math")]
trainers = [Trainer(device, way, 2, MINIATURE) for way in ways]
for trainer in trainers:
    trainer.step()
print(found)
"""


def test_a_compiled_trainer_has_its_own_attention():
    done = subprocess.run([sys.executable, "-c", TRAINERS], capture_output=True, text=True)
    forward_and_backward = [1, 1, 0, 0]
    assert done.stdout.splitlines()[-1] == str(forward_and_backward), done.stderr[-2000:]
