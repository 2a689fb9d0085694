"""A launch is answered from an identical one of this run of the suite, and from no other."""

import os
from dataclasses import replace

import pytest
import run_cache
from trained import trained

from bootcamp.launcher import launch
from bootcamp.launcher.run_request import Command, RunRequest
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.train import config

FLAGS = {"steps": 2, "model": "mlp", "global_batch": 8, "quiet": True}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache that answers launches; `again` is the same seen by another process."""
    monkeypatch.setenv(run_cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(run_cache, "_launched_here", set())
    return tmp_path


def numbers(cache):
    return {how: len(launches) for how, launches in run_cache.counted(cache).items()}


def in_another_process():
    run_cache._launched_here.clear()


def test_identical_launch_is_copied_and_gets_a_record_of_its_own(cache):
    first = launch.launch("cpu", **FLAGS)
    in_another_process()
    second = launch.launch("cpu", **dict(reversed(FLAGS.items())))
    assert numbers(cache) == {"trained": 1, "copied": 1}
    assert second.folder != first.folder
    assert second.steps == first.steps
    assert second.config["started_unix_seconds"] > first.config["started_unix_seconds"]
    (second.folder / "steps.jsonl").write_text("")
    in_another_process()
    assert launch.launch("cpu", **FLAGS).steps == first.steps, "what was kept has not changed"


def test_repeated_launch_of_one_process_trains_again(cache):
    runs = [launch.launch("cpu", **FLAGS) for _ in range(2)]
    assert numbers(cache) == {"trained": 2, "copied": 0}
    assert runs[0].steps != runs[1].steps, "other seconds"


def test_launch_of_another_text_flag_or_environment_is_another_launch(cache):
    line = "optimizer.step()"
    for script, more in (
        ("cpu", {}),
        ("cpu", {"seed": 1}),
        ("cpu", {"options": launch.Options(env={"OMP_DYNAMIC": "true"})}),
        (variant("cpu", "cpu_renamed", {line: line}), {}),
        (variant("cpu", "cpu_changed", {line: f"{line}  # changed"}), {}),
    ):
        in_another_process()
        launch.launch(script, **FLAGS, **more)
    assert numbers(cache) == {"trained": 5, "copied": 0}


def test_files_and_failures_are_never_answered(cache, tmp_path):
    fails = variant("cpu", "cpu_fails", {"optimizer.step()": "raise ValueError('each time')"})
    for _ in range(2):
        in_another_process()
        assert launch.launch(fails, raises=False, **FLAGS).status == "failed"
        launch.launch("cpu", save=tmp_path / "saved", **FLAGS)
    assert numbers(cache) == {"trained": 4, "copied": 0}


def test_without_its_variable_no_launch_is_answered():
    """Of the tests, only those that ask for a shared run get one."""
    assert run_cache.VARIABLE not in os.environ
    runs = [trained("cpu", **FLAGS), launch.launch("cpu", device="cpu", **FLAGS)]
    assert runs[0].folder != runs[1].folder
    assert runs[0].steps != runs[1].steps
    assert trained("cpu", **FLAGS).folder == runs[0].folder
    assert isinstance(trained("cpu", **FLAGS), Run)


def test_key_is_none_for_a_start_that_is_shown_and_the_same_for_defaults_spelt_out(tmp_path):
    parser = config._parser(("cpu",))
    for flag, value in run_cache.DEFAULTS:
        assert parser.get_default(flag.removeprefix("--")) == value
    rank = Command([str(strategies.SCRIPTS["cpu"].path)], {})
    plain = RunRequest(str(tmp_path), "warm", [rank])
    torchrun = Command(["python", "-m", "torch.distributed.run"], {})
    for start in ("cold", "command"):
        assert run_cache._key(replace(plain, start=start, agents=[torchrun]), tmp_path) is None
    longer = replace(rank, argv=[*rank.argv, *run_cache.DEFAULTS[0]])
    key = run_cache._key(plain, tmp_path)
    assert key
    assert run_cache._key(replace(plain, ranks=[longer]), tmp_path) == key
