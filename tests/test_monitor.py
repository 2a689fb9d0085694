"""The run monitor: what it reads, what it draws, and the thread that does both."""

import _thread
import json
import os
import re
import runpy
import sys
import threading
import time

import pytest
import records
from processes import meanwhile, until

from bootcamp.launcher.launch import Options, launch
from bootcamp.paths import REFERENCE, SRC
from bootcamp.records import summary
from bootcamp.records.steps import Steps
from bootcamp.widgets import monitor

NOW = 1_800_000_000.0
CONFIG = json.loads((REFERENCE / "xeon-2core-ddp-2" / "config.json").read_text()) | {"steps": 20}


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    monitor.stop()
    assert not list_threads()


def list_threads():
    return [thread for thread in threading.enumerate() if thread.name == monitor.THREAD]


def make_row(step, loss=4.0, seconds=0.1):
    same = {"attempt": 0, "samples": 32, "tokens": 1}
    return {"step": step, "loss": loss, "seconds": seconds, **same}


def append(run, *rows):
    """Add rows to steps.jsonl."""
    with open(run / "steps.jsonl", "a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def touch(run, at=None):
    """Make the files of a run those of this moment."""
    for path in run.rglob("*"):
        os.utime(path, at and (at, at))


@pytest.fixture
def run(tmp_path):
    """A run of two ranks that began ten seconds before NOW and has done three of twenty steps."""
    folder = tmp_path / "run"
    records.write_files(
        folder,
        CONFIG | {"started_unix_seconds": NOW - 10},
        {"status": "running"},
        [make_row(step, 5.0 - step) for step in range(3)],
    )
    for rank in range(2):
        (folder / "ranks" / f"{rank}.beat").write_text(f"{4_000_000 + rank:>9} {3 - rank:>9}\n")
    touch(folder, NOW)
    return folder


def look(folder, now=NOW + 2):
    return monitor.State(folder, Steps(folder), now)


# What the files say


def test_state_is_read_from_the_files(run):
    state = look(run)
    assert (state.status, state.ended) == ("running", False)
    assert (state.steps_done, state.steps) == (3, 20)
    assert state.seconds == pytest.approx(12)
    assert state.losses == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert state.rates[-1] == (2, pytest.approx(320))
    assert [rank.steps_done for rank in state.ranks] == [3, 2]
    assert [rank.seconds_ago for rank in state.ranks] == [2, 2]
    (run / "steps.jsonl").write_text("")
    assert look(run).steps_done == 2, "by all ranks: the losses come later"
    assert "running, 2 of 20 steps in 12 s" in repr(monitor.draw(look(run)))
    assert state.label == "ddp, 2 ranks (CPU)"


def test_state_of_torn_files_is_drawn(run):
    config = (run / "config.json").read_text()
    for torn in ("", "{", "[]", "12", "1 2 3", "a b"):
        (run / "ranks" / "0.beat").write_text(torn)
        (run / "ranks" / "0.json").write_text(torn)
        assert look(run).ranks[0].steps_done is None
        (run / "config.json").write_text(torn)
        state = look(run)
        assert len(state.ranks) == 2, "as many as have given a sign"
        assert monitor.draw(state)
        (run / "config.json").write_text(config)


def test_process_of_a_rank_is_the_one_that_holds_its_file_open(run):
    path = run / "ranks" / "0.beat"
    path.write_text(f"{os.getpid():>9} {3:>9}\n")
    other = look(run).ranks[0]
    assert (other.here, other.memory_bytes) == (False, None), "it has taken over the number"
    with open(path, "a"):
        rank = look(run).ranks[0]
        assert rank.here is True
        assert rank.memory_bytes > 1e6


def test_run_without_signs_and_processes_is_lost(run):
    assert look(run, NOW + 59).status == monitor.read_status(run, NOW + 59) == "running"
    state = look(run, NOW + 61)
    assert state.status == monitor.read_status(run, NOW + 61) == "lost"
    assert "probably killed" in state.notes[0]
    for beat in (run / "ranks").glob("*.beat"):
        beat.unlink()
    assert look(run, NOW + 61).status == "running", "it may still load, or wait for its devices"
    assert look(run, NOW + 3601).status == "lost"


def test_notes_name_a_silent_rank_a_gone_one_and_numbers_that_are_none(run, monkeypatch):
    monkeypatch.setattr(monitor, "inspect_process", lambda *_: (True, 5_000_000))
    assert "Rank 1 has finished no step for 20 s." in look(run, NOW + 20).notes
    monkeypatch.setattr(monitor, "inspect_process", lambda *_: (False, None))
    assert "The process of rank 0" in look(run).notes[0]
    losses = (float("nan"), None, 4.0, 3.0)
    append(run, *(make_row(3 + k, loss, seconds=0.1 * (k != 2)) for k, loss in enumerate(losses)))
    state = look(run)
    assert "The loss is not a number from step 3 on." in state.notes
    (curve, _) = re.findall(r'<path d="(.*?)"', monitor.draw(state).content)
    assert curve.count("M") == 2, "the pen is lifted"


def test_ended_run_says_how_it_ended(run):
    for rank in range(2):
        (run / "ranks" / f"{rank}.json").write_text('{"peak_bytes": 4000000}')
    for status, words in (("ok", "ended well"), ("failed", "failed")):
        summary.write(run, status, error=summary.failure(1, "raised", "rank 1 said no\nand more"))
        os.utime(run / "summary.json", (NOW + 1, NOW + 1))
        state = look(run, NOW + 500)
        assert state.ended
        assert [rank.peak_bytes for rank in state.ranks] == [4_000_000] * 2
        drawn = monitor.draw(state).content
        assert f"ddp, 2 ranks (CPU): {words}, 3 of 20 steps in 11 s" in drawn, "until its last sign"
        assert ("rank 1 said no" in drawn) == (status != "ok")
        assert "and more" not in drawn
        assert drawn.count("at its end") == 2


# What is drawn


def test_picture_says_everything_in_words(run):
    frame = monitor.draw(look(run), ["The machine is busy."], "12:00:00")
    for words in (
        "ddp, 2 ranks (CPU): running, 3 of 20 steps in 12 s, about 1.7 s left",
        'aria-label="loss at the last step: 3; from 3 to 5 so far"',
        'aria-label="speed at the last step: 320 samples/s; from 320 to 320 so far"',
        "The machine is busy.",
        "as of 12:00:00",
    ):
        assert words in frame.content
    assert re.search(r"1  2.0 s ago, process gone +2 ", repr(frame))
    new = records.write_files(run.with_name("new"), summary={"status": "running"}).folder
    touch(new, NOW)
    begun = monitor.draw(look(new)).content
    assert "starting" in begun
    assert "nothing yet" in begun


def test_load_of_gpus_is_what_nvml_says(monkeypatch):
    libnvml = pytest.importorskip("nvitop.api.libnvml")
    monkeypatch.setattr(sys, "argv", ["", str(os.getpid())])
    simulated = runpy.run_path(str(SRC / "snippets" / "nvitop_simulated.py"))
    monkeypatch.setattr(libnvml, "nvmlQuery", simulated["query"])
    monkeypatch.setattr(monitor.machine, "gpu_names", lambda: ("simulated GPU",) * 2)
    gpus = r" GPU 0: 0 %, memory [\d.]+ [MG]B of 17.2 GB. GPU 1: 100 %, memory 0 bytes of 17.2 GB."
    assert re.search(gpus, monitor.describe_load()), monitor.describe_load()


# The thread


class Picture:
    """What `display` returns: keeps the last frame."""

    def __init__(self, frame):
        self.update(frame)

    def update(self, frame):
        self.said = frame.text


@pytest.fixture
def pictures(monkeypatch):
    """The pictures that are opened, in order."""
    display = pytest.importorskip("IPython.display")
    shown = []

    def show(frame, display_id):
        shown.append(Picture(frame))
        return shown[-1]

    monkeypatch.setattr(display, "display", show)
    return shown


@pytest.fixture
def logs(monkeypatch, tmp_path):
    """A folder of runs of its own: other tests leave runs in theirs."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(monitor, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


@pytest.fixture
def going(run):
    """The run as one that began now and goes on."""
    (run / "config.json").write_text(json.dumps(CONFIG | {"started_unix_seconds": time.time()}))
    touch(run)
    return run


def has_ended(watching):
    """Wait until a monitor has ended; whether it has."""
    watching.join(10)
    return not watching.is_alive()


def test_monitor_follows_a_run_and_ends_with_it(going, pictures):
    watching = monitor.watch(going)
    assert "3 of 20 steps" in pictures[0].said
    assert "All of this machine: CPU" in pictures[0].said
    append(going, make_row(3))
    until(lambda: "4 of 20 steps" in pictures[0].said)
    summary.write(going, "interrupted")
    assert has_ended(watching)
    assert "interrupted, 4 of 20 steps" in pictures[0].said
    assert has_ended(monitor.watch(going)), "an ended run is shown once and for all"
    assert "interrupted" in pictures[1].said


@pytest.mark.parametrize(
    ("name", "waiting"), [("mine", "for a run in"), (None, "for a run to begin")]
)
def test_monitor_waits_for_a_run_to_begin(going, pictures, logs, name, waiting):
    records.write_files(logs / "old", {}, {"status": "ok"})
    records.write_files(logs / "a-command", summary={"status": "running"})
    records.write_files(logs / "torn")
    watching = monitor.watch(name and logs / name)
    assert f"Waiting {waiting}" in pictures[0].said
    going.rename(logs / "mine")
    until(lambda: "3 of 20 steps" in pictures[0].said)
    assert watching.folder == logs / "mine"


@pytest.mark.slow
def test_monitor_follows_a_launch_until_it_is_interrupted(pictures, logs):
    """While this thread is busy in launch."""
    watching = monitor.watch(logs / "mine")
    trains = meanwhile(
        lambda: watching.state and watching.state.steps_done > 1, _thread.interrupt_main
    )
    with trains, pytest.raises(KeyboardInterrupt):
        launch("cpu", steps=100_000, options=Options(run_dir=logs / "mine"), quiet=True)
    assert has_ended(watching)
    assert "interrupted, " in pictures[0].said
