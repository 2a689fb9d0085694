"""The run monitor: what it reads, what it draws, and the thread that does both."""

import json
import os
import re
import sys
import threading
import time
import types

import pytest

from bootcamp.launcher.launch import Options, launch
from bootcamp.paths import REFERENCE
from bootcamp.records import summary
from bootcamp.records.steps import Steps
from bootcamp.widgets import monitor

NOW = 1_800_000_000.0
CONFIG = json.loads((REFERENCE / "xeon-2core-ddp-2" / "config.json").read_text()) | {"steps": 20}


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    monitor.stop()
    assert not threads()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == monitor.THREAD]


def row(step, loss=4.0, seconds=0.1):
    return json.dumps(
        {"step": step, "attempt": 0, "loss": loss, "seconds": seconds, "samples": 32, "tokens": 1}
    )


def write(path, text, at=NOW):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


@pytest.fixture
def run(tmp_path):
    """A run of two ranks that began ten seconds before NOW and has done three of twenty steps."""
    folder = tmp_path / "run"
    write(folder / "config.json", json.dumps(CONFIG | {"started_unix_seconds": NOW - 10}))
    write(folder / "summary.json", json.dumps({"status": "running"}))
    write(folder / "steps.jsonl", "\n".join(row(step, 5.0 - step) for step in range(3)) + "\n")
    for rank in range(2):
        write(folder / "ranks" / f"{rank}.beat", f"{4_000_000 + rank:>9} {3 - rank:>9}\n")
    return folder


def look(folder, now=NOW + 2):
    return monitor.State(folder, Steps(folder), now)


# What the files say


def test_a_running_run_is_read_from_its_files(run):
    state = look(run)
    assert (state.status, state.ended) == ("running", False)
    assert (state.steps_done, state.steps) == (3, 20)
    assert state.seconds == pytest.approx(12)
    assert state.losses == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert state.rates[-1] == (2, pytest.approx(320))
    assert [rank.steps_done for rank in state.ranks] == [3, 2]
    assert [rank.seconds_ago for rank in state.ranks] == [2, 2]
    assert state.label == "ddp, 2 ranks (CPU)"


def test_half_a_line_is_no_error_and_is_read_when_it_is_whole(run):
    steps = Steps(run)
    with open(run / "steps.jsonl", "a") as file:
        file.write(row(3)[:20])
        file.flush()
        assert monitor.State(run, steps, NOW).steps_done == 3
        file.write(row(3)[20:] + "\n")
    assert monitor.State(run, steps, NOW).steps_done == 4


@pytest.mark.parametrize(
    "torn", ["{", "null", "[]", "7", '{"step": 1}', "\x00\x00", row(3, seconds=0)]
)
def test_a_torn_line_is_left_out(run, torn):
    with open(run / "steps.jsonl", "a") as file:
        file.write(f"{torn}\n{row(4)}\n")
    assert look(run).steps_done == 5


@pytest.mark.parametrize("torn", ["", "{", "[]", "12", "1 2 3", "a b"])
def test_torn_files_are_no_error(run, torn):
    write(run / "ranks" / "0.beat", torn)
    write(run / "ranks" / "0.json", torn)
    assert look(run).ranks[0].steps_done is None
    write(run / "config.json", torn)
    state = look(run)
    assert len(state.ranks) == 2, "as many as have given a sign"
    assert monitor.draw(state)


def test_the_last_row_of_a_step_counts_and_a_new_file_begins_anew(run):
    steps = Steps(run)
    monitor.State(run, steps, NOW)
    with open(run / "steps.jsonl", "a") as file:
        file.write(row(1, loss=9.0) + "\n")
    assert monitor.State(run, steps, NOW).losses[1] == (1, 9.0)
    write(run / "steps.jsonl", row(0, loss=1.0) + "\n")
    assert monitor.State(run, steps, NOW).losses == [(0, 1.0)]


def test_a_process_is_known_by_the_file_that_it_holds_open(run):
    path = run / "ranks" / "0.beat"
    write(path, f"{os.getpid():>9} {3:>9}\n")
    assert look(run).ranks[0].here is False, "a process that took over the number"
    held = os.open(path, os.O_WRONLY)
    try:
        rank = look(run).ranks[0]
        assert rank.here is True
        assert rank.memory_bytes > 1e6
    finally:
        os.close(held)


def test_a_run_without_signs_and_processes_is_given_up(run):
    assert look(run, NOW + 59).status == "running"
    state = look(run, NOW + 61)
    assert state.status == "lost"
    assert "probably killed" in state.notes[0]
    assert monitor.read_status(run, NOW + 61) == "lost"
    assert monitor.read_status(run, NOW + 59) == "running"
    for beat in (run / "ranks").glob("*.beat"):
        beat.unlink()
    assert look(run, NOW + 61).status == "running", "it may still load, or wait for its devices"
    assert look(run, NOW + 3601).status == "lost"


def test_a_silent_rank_and_numbers_that_are_none_are_remarked_on(run, monkeypatch):
    monkeypatch.setattr(monitor, "inspect_process", lambda *_: (True, 5_000_000))
    assert "Rank 1 has finished no step for 20 s." in look(run, NOW + 20).notes
    monkeypatch.setattr(monitor, "inspect_process", lambda *_: (False, None))
    assert "The process of rank 0" in look(run).notes[0]
    with open(run / "steps.jsonl", "a") as file:
        file.write(row(3, loss=float("nan")) + "\n" + row(4, loss=None) + "\n")
    state = look(run)
    assert "The loss is not a number from step 3 on." in state.notes
    pen_lifted = [(0, 1.0), (1, 2.0), (2, float("nan")), (3, None), (4, 1.0)]
    assert monitor._curve("loss", "", pen_lifted).count("M") == 2


def test_long_curves_are_thinned_and_told_in_full():
    drawn = monitor._curve("loss", "", [(step, float(step)) for step in range(1000)])
    assert monitor.POINTS / 2 < drawn.count("L") < monitor.POINTS
    assert "loss at the last step: 999; from 0 to 999 so far" in drawn


@pytest.mark.parametrize(
    ("status", "words"),
    [("ok", "ended well"), ("failed", "failed"), ("interrupted", "interrupted")],
)
def test_an_ended_run_says_how_it_ended(run, status, words):
    error = summary.failure(1, "raised", "rank 1 said no\nand more")
    summary.write(run, status, error=error)
    os.utime(run / "summary.json", (NOW + 1, NOW + 1))
    state = look(run, NOW + 500)
    assert state.ended
    assert state.seconds == pytest.approx(11), "until its last sign"
    frame = monitor.draw(state)
    assert f"ddp, 2 ranks (CPU): {words}, 3 of 20 steps in 11 s" in frame.content
    assert ("rank 1 said no" in frame.content) == (status != "ok")
    assert "and more" not in frame.content
    for rank in range(2):
        write(run / "ranks" / f"{rank}.json", '{"peak_bytes": 4000000}')
    state = look(run, NOW + 500)
    assert [rank.peak_bytes for rank in state.ranks] == [4_000_000] * 2
    assert monitor.draw(state).content.count("at its end") == 2


# What is drawn


def test_the_picture_says_everything_in_words(run):
    frame = monitor.draw(look(run), ["The machine is busy."], "12:00:00")
    for words in (
        "ddp, 2 ranks (CPU): running, 3 of 20 steps in 12 s, about 1.7 s left",
        'aria-label="loss at the last step: 3; from 3 to 5 so far"',
        'aria-label="speed at the last step: 320 samples/s; from 320 to 320 so far"',
        "last sign of life",
        "The machine is busy.",
        "as of 12:00:00",
    ):
        assert words in frame.content
    assert re.search(r"1  2.0 s ago, process gone +2 ", repr(frame))


def test_what_a_run_names_is_escaped(run):
    write(run / "config.json", json.dumps(CONFIG | {"strategy": "<script>"}))
    assert "<script>" not in monitor.draw(look(run)).content


def test_a_run_that_has_not_begun_is_drawn(tmp_path):
    folder = tmp_path / "new"
    write(folder / "summary.json", json.dumps({"status": "running"}))
    frame = monitor.draw(look(folder))
    assert "starting" in frame.content
    assert "nothing yet" in frame.content


def test_a_machine_without_a_gpu_hears_nothing_fatal(capfd):
    sentence = monitor.describe_load()
    said = capfd.readouterr()
    assert said.out + said.err == ""
    assert sentence.startswith("All of this machine: CPU")


def test_gpus_are_named_where_there_are_some_and_nvitop(monkeypatch):
    class Device:
        index = 0
        gpu_utilization = memory_used = memory_total = lambda self: 7e9

        @classmethod
        def all(cls):
            return [cls()]

    monkeypatch.setattr(monitor.machine, "gpu_names", lambda: ("A GPU",))
    monkeypatch.setitem(sys.modules, "nvitop", types.SimpleNamespace(Device=Device))
    assert "GPU 0: 7000000000.0 %, memory 7 GB of 7 GB." in monitor.describe_load()
    monkeypatch.setitem(sys.modules, "nvitop", None)
    assert "GPU" not in monitor.describe_load()


# The thread


class Picture:
    """What `display` returns: keeps the frames."""

    def __init__(self, first):
        self.frames = [first]

    def update(self, frame):
        self.frames.append(frame)

    def __str__(self):
        return self.frames[-1].text


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


def ended(watching, seconds):
    """Wait until a monitor has ended; whether it has."""
    watching.join(seconds)
    return not watching.is_alive()


def until(true, seconds=60):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def going(run):
    """Make the files of a run those of this moment."""
    write(
        run / "config.json", json.dumps(CONFIG | {"started_unix_seconds": time.time()}), time.time()
    )
    for path in [run, *run.rglob("*")]:
        os.utime(path)
    return run


def test_follows_a_run_and_ends_with_it(run, pictures):
    watching = monitor.watch(going(run))
    assert len(threads()) == 1
    assert "3 of 20 steps" in str(pictures[0])
    with open(run / "steps.jsonl", "a") as file:
        file.write(row(3) + "\n")
    until(lambda: "4 of 20 steps" in str(pictures[0]))
    summary.write(run, "interrupted")
    assert ended(watching, 10)
    assert "interrupted, 4 of 20 steps" in str(pictures[0])


def test_a_run_that_has_ended_is_shown_once_and_for_all(run, pictures):
    summary.write(run, "ok")
    watching = monitor.watch(run)
    assert ended(watching, 10)
    assert not threads()
    assert "ended well" in str(pictures[0])


def test_opened_again_the_last_picture_is_the_one_that_follows(run, pictures):
    first = monitor.watch(going(run))
    second = monitor.watch(run)
    assert ended(first, 0)
    assert "This monitor was stopped" in str(pictures[0])
    assert len(threads()) == 1
    second.stop()
    third = monitor.watch(str(run))
    assert not ended(third, 0)
    assert "3 of 20 steps" in str(pictures[2])


def test_waits_for_a_run_to_begin(run, pictures, tmp_path):
    later = tmp_path / "later"
    monitor.watch(later)
    assert "Waiting for a run in" in str(pictures[0])
    going(run).rename(later)
    until(lambda: "3 of 20 steps" in str(pictures[0]))


def test_finds_the_newest_run_that_is_going(run, pictures, monkeypatch, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(monitor, "LOGS", logs)
    write(logs / "old" / "summary.json", json.dumps({"status": "ok"}))
    write(logs / "old" / "config.json", "{}")
    write(logs / "a-command" / "summary.json", json.dumps({"status": "running"}), time.time())
    write(logs / "torn" / "summary.json", "")
    watching = monitor.watch()
    assert "Waiting for a run to begin" in str(pictures[0])
    going(run).rename(logs / "new")
    until(lambda: watching.folder == logs / "new")
    until(lambda: "3 of 20 steps" in str(pictures[0]))


def test_a_run_that_was_over_before_the_next_look_is_found(run, pictures, monkeypatch, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(monitor, "LOGS", logs)
    watching = monitor.watch()
    summary.write(going(run), "ok")
    run.rename(logs / "quick")
    assert ended(watching, 10)
    assert "ended well" in str(pictures[0])


def test_waits_no_longer_than_it_says(pictures, tmp_path):
    watching = monitor.watch(tmp_path / "never", wait_seconds=0.3)
    assert ended(watching, 10)
    assert "No run has begun" in str(pictures[0])


def test_a_new_call_replaces_one_that_waits(pictures, tmp_path):
    first = monitor.watch(tmp_path / "never")
    monitor.watch(tmp_path / "never either")
    assert ended(first, 0)
    assert len(threads()) == 1


def test_a_file_is_no_run_folder(tmp_path, pictures):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="this is a file"):
        monitor.watch(tmp_path / "file")


def test_a_folder_that_goes_away_ends_the_monitor(run, pictures):
    watching = monitor.watch(going(run))
    run.rename(run.with_name("gone"))
    assert ended(watching, 10)
    assert "lost" in str(pictures[0])


def test_an_error_in_the_thread_is_shown_and_ends_it(run, pictures, monkeypatch):
    watching = monitor.watch(going(run))
    monkeypatch.setattr(monitor, "draw", lambda *_: 1 / 0)
    assert ended(watching, 10)
    assert "The monitor failed: ZeroDivisionError" in str(pictures[0])


# With a real run, while this thread is busy in launch


@pytest.fixture
def logs(monkeypatch, tmp_path):
    """A folder of runs of its own: other tests leave runs in theirs."""
    monkeypatch.setattr(monitor, "LOGS", tmp_path)
    return tmp_path


def test_an_interrupted_launch_ends_its_run_and_its_monitor(pictures, logs):
    import _thread

    folder = logs / "mine"
    watching = monitor.watch(folder)

    def interrupt():
        until(lambda: watching.state and watching.state.steps_done > 1)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        launch("cpu", steps=100_000, options=Options(run_dir=folder), quiet=True)
    assert ended(watching, 10)
    assert "interrupted, " in str(pictures[0])
