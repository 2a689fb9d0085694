"""Horovod, built here from its own source package and started by its own launcher."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bootcamp.experiments import replay
from bootcamp.launcher import launch
from bootcamp.paths import ROOT, SRC

spec = importlib.util.spec_from_file_location("horovod_tool", ROOT / "tools" / "horovod.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

needs_horovod = pytest.mark.skipif(
    not launch.available("horovod"), reason="Horovod is not built: make horovod"
)
FLAGS = {"steps": 4, "global_batch": 12, "device": "cpu", "quiet": True}
RANKS = SRC / "snippets" / "horovod_ranks.py"


@needs_horovod
@pytest.mark.slow
def test_it_is_built_for_torch_and_gloo():
    asks = "import horovod.torch as hvd; print(hvd.gloo_built(), hvd.mpi_built())"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@needs_horovod
def test_a_refusal_is_one_sentence():
    with pytest.raises(launch.RunRefused) as error:
        launch.launch("horovod", 2, **{**FLAGS, "global_batch": 25})
    assert str(error.value).startswith(
        "_train_horovod.py: --global-batch 25 does not divide over 2"
    )
    assert len(str(error.value).splitlines()) == 1


def test_it_is_not_started_by_torchrun():
    with pytest.raises(ValueError, match="this script is started by horovodrun"):
        launch.launch("horovod", 2, start="torchrun", **FLAGS)
    with pytest.raises(ValueError, match="Horovod's are started on this host"):
        launch.launch("horovod", 2, hosts=2, **FLAGS)


@needs_horovod
def test_its_ranks_are_started_by_horovodrun():
    run = launch.launch("horovod", 2, **FLAGS)
    assert (run.summary["launcher"], run.world, run.summary["world_size"]) == ("horovodrun", 2, 2)
    said = replay.read_printed_lines(launch.launch(RANKS, 2, quiet=True))
    assert said[0] == "rank 0 of 2, on this machine 0 of 2"
    assert "    the ranks' numbers: mean 0.5, sum 1.0, rank 0's 0.0" in said


@pytest.mark.parametrize("framework", ["horovod", "lightning", "accelerate", "megatron"])
def test_where_it_is_missing_one_sentence_says_how_to_get_it(framework, monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "horovod,lightning,accelerate,megatron")
    assert not launch.available(framework)
    with pytest.raises(launch.RunRefused, match=f"{framework.capitalize()} is not installed here"):
        launch.launch(framework, 2, **FLAGS)


def test_a_wheel_belongs_to_one_torch(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_CACHE", str(tmp_path))
    folder = tool.cache_folder()
    assert folder.parent == tmp_path
    folder.mkdir()
    (folder / "horovod-0.28.1-x.whl").touch()
    assert tool.cached_wheel().name == "horovod-0.28.1-x.whl"
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert tool.cached_wheel() is None
    assert tool.environment(tmp_path)["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS")
    assert tool.cached_wheel() is not None
    monkeypatch.setattr(tool.importlib.metadata, "version", lambda _: "9.9")
    assert tool.cached_wheel() is None


def test_a_machine_without_a_compiler_is_told_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("BOOTCAMP_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tool, "installed", lambda: False)
    assert tool.main() == tool.CANNOT
    assert "there is no C++ compiler" in capsys.readouterr().out


@pytest.fixture
def fake_pip(monkeypatch, tmp_path):
    """Plays pip in a machine that could build: fails are the commands that do not end well."""
    played = SimpleNamespace(asked=[], fails=(), says="Building wheel for horovod\n")

    def run(arguments, stdout=None, **_):
        command = arguments[3] if "pip" in arguments else "dumpversion"
        played.asked.append(command)
        if stdout:
            stdout.write(played.says)
        return SimpleNamespace(returncode=int(command in played.fails), stdout="12")

    monkeypatch.setenv("BOOTCAMP_CACHE", str(tmp_path))
    monkeypatch.setattr(tool, "installed", lambda: False)
    monkeypatch.setattr(tool, "obstacle", lambda: None)
    monkeypatch.setattr(tool.subprocess, "run", run)
    return played


def test_a_build_that_fails_is_a_sentence_and_is_not_repeated_by_make_test(fake_pip, capsys):
    fake_pip.fails = ("wheel",)
    assert tool.main() == tool.CANNOT
    assert capsys.readouterr().out.splitlines()[-1].startswith("Horovod did not build: the end of")
    assert tool.failed_log().exists()
    assert tool.main(once=True) == tool.CANNOT
    assert fake_pip.asked == ["install", "wheel"]
    assert capsys.readouterr().out.startswith(f"Horovod did not build: see {tool.failed_log()}")
    assert tool.main() == tool.CANNOT
    assert fake_pip.asked == ["install", "wheel"] * 2


def test_a_source_package_that_was_not_reached_is_asked_for_again(fake_pip):
    fake_pip.fails, fake_pip.says = ("wheel",), "No matching distribution found for horovod\n"
    assert [tool.main(once=True), tool.main(once=True)] == [tool.CANNOT] * 2
    assert fake_pip.asked == ["install", "wheel"] * 2


def test_without_an_index_or_in_a_read_only_environment_one_sentence_says_so(
    fake_pip, capsys, monkeypatch
):
    fake_pip.fails = ("install",)
    assert tool.main() == tool.CANNOT
    assert capsys.readouterr().out == "Horovod was not installed: pip's reason is above.\n"
    monkeypatch.setattr(tool.os, "access", lambda *_, **__: False)
    assert tool.main() == tool.CANNOT
    assert capsys.readouterr().out.endswith("can't be written by this user.\n")
    assert fake_pip.asked == ["install"]


def test_a_file_of_a_frameworks_name_is_no_framework(monkeypatch):
    """tools/ is on the path of several tests, and holds a horovod.py and a cluster.py."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    assert importlib.util.find_spec("cluster")
    assert not launch.available("cluster")
    assert launch.available("pytest")


def test_an_old_compiler_is_named(monkeypatch, tmp_path):
    for name, text in (("g++", "#!/bin/sh\necho 8.3.0\n"), ("make", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert "g++ is 8.3.0, it needs 9 or newer" in tool.obstacle()
