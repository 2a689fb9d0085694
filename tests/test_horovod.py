"""Horovod, built here from its own source package and started by its own launcher."""

import importlib.util

import pytest
from trained import baseline

from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.launcher.arguments import to_arguments
from bootcamp.paths import ROOT, SRC
from bootcamp.records.runs import Run

spec = importlib.util.spec_from_file_location("horovod_tool", ROOT / "tools" / "horovod.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

FLAGS = {"steps": 4, "global_batch": 12, "device": "cpu", "quiet": True}
FRAMEWORKS = ("horovod", "lightning", "accelerate", "megatron")


@pytest.mark.skipif(not launch.available("horovod"), reason="Horovod is not built: make horovod")
def test_refusal_under_horovodrun_is_one_sentence():
    with pytest.raises(launch.RunRefused) as error:
        launch.launch("horovod", 2, **{**FLAGS, "global_batch": 25})
    (said,) = str(error.value).splitlines()
    assert said.startswith("_train_horovod.py: --global-batch 25 does not divide over 2")


@pytest.mark.skipif(not launch.available("horovod"), reason="Horovod is not built: make horovod")
def test_mpirun_starts_ranks_that_train_what_the_baseline_trains(tmp_path):
    flags = {**equality.settings(2), "device": "cpu", "optimizer": "sgd"}
    named = to_arguments({**flags, "run_dir": tmp_path / "run"})
    said = launch.run_command(["python", str(SRC / "snippets" / "horovod_mpi.py"), *named])
    if said.startswith("No MPI here"):
        pytest.skip("no MPI here")
    run = Run(tmp_path / "run")
    equality.same_training(run, baseline(**flags))
    assert (run.summary["launcher"], run.summary["world_size"]) == ("mpirun", 2)


def test_horovod_is_not_started_by_torchrun_nor_on_hosts():
    with pytest.raises(ValueError, match="this script is started by horovodrun"):
        launch.launch("horovod", 2, start="torchrun", **FLAGS)
    with pytest.raises(ValueError, match="Horovod's are started on this host"):
        launch.launch("horovod", 2, hosts=2, **FLAGS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_that_is_missing_is_named_in_one_sentence(framework, monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", ",".join(FRAMEWORKS))
    with pytest.raises(launch.RunRefused, match=f"{framework.capitalize()} is not installed here"):
        launch.launch(framework, 2, **FLAGS)


def test_file_of_a_frameworks_name_is_no_framework():
    """tools/ is on the path of tests, and holds a results.py."""
    assert importlib.util.find_spec("results")
    assert not launch.available("results")
    assert launch.available("pytest")


def test_wheel_of_horovod_belongs_to_one_torch(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_CACHE", str(tmp_path))
    tool.cache_folder().mkdir()
    wheel = tool.cache_folder() / "horovod-0.28.1-x.whl"
    wheel.touch()
    assert tool.cached_wheel() == wheel
    with monkeypatch.context() as patch:
        patch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
        assert tool.cached_wheel() is None
        assert tool.environment(tmp_path)["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    with monkeypatch.context() as patch:
        patch.setattr(tool.shutil, "which", lambda name, **_: f"/opt/{name}")
        assert tool.cached_wheel() is None, "MPI is found, and built in"
        assert "HOROVOD_WITHOUT_MPI" not in tool.environment(tmp_path)
    monkeypatch.setattr(tool.importlib.metadata, "version", lambda _: "9.9")
    assert tool.cached_wheel() is None
