"""A step's seconds and loss are written when they are there, and no step waits for them."""

import json
import sys
import time

import pytest
import torch
from processes import run_program

from bootcamp.paths import SRC
from bootcamp.records import summary
from bootcamp.train import step_clock
from bootcamp.train.step_clock import Clock, Result, StepLog

HALF_A_SECOND = Result(lambda: 0.5)


class Stream:
    """A GPU's stream with a clock of its own, which reaches an event when the test says so."""

    def __init__(self):
        self.recorded, self.reached, self.waits = 0, 0, 0

    def event(self, enable_timing=False):
        return Event(self)


class Event:
    def __init__(self, stream):
        self.stream, self.number = stream, None

    def record(self):
        self.stream.recorded += 1
        self.number = self.stream.recorded

    def query(self):
        return self.stream.reached >= self.number

    def synchronize(self):
        self.stream.waits += not self.query()
        self.stream.reached = max(self.stream.reached, self.number)

    def elapsed_time(self, end):
        assert end.query(), "torch raises for an event that has not come"
        return 1000.0 * (end.number - self.number)


@pytest.fixture
def log(tmp_path):
    """A log whose `written()` are the rows that it has written so far."""
    log = StepLog(tmp_path / "steps.jsonl")
    log.written = lambda: [
        json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()
    ]
    return log


def test_step_on_a_gpu_is_timed_by_events_without_waiting_before_the_end(log, monkeypatch):
    stream = Stream()

    def read(loss):
        event = stream.event()
        event.record()
        return Result(loss.item, event)

    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    monkeypatch.setattr(step_clock, "read_later", read)
    clock = Clock(torch.device("cuda"))
    for step in range(4):
        clock.begin()
        log.step_ended({"step": step}, clock.end())
        log.loss(torch.tensor(float(step)))
        if step == 2:
            stream.reached = 3  # the GPU has come to the loss of step 0, which is behind step 1
    assert stream.waits == 0
    assert log.written() == []
    stream.reached = 5
    clock.begin()
    log.step_ended({"step": 4}, clock.end())
    log.loss(torch.tensor(4.0))
    assert [row["step"] for row in log.written()] == [0]
    assert stream.waits == 0
    log.flush()
    written = log.written()
    assert [row["loss"] for row in written] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert {row["seconds"] for row in written} == {1.0}


class Handle:
    """An asynchronous all-reduce."""

    def __init__(self, loss, summed):
        self.loss, self.summed, self.done = loss, summed, False

    def wait(self):
        self.loss.fill_(self.summed)
        self.done = True

    def is_completed(self):
        return self.done


def test_loss_is_read_once_it_is_reduced_which_is_after_the_next_step(log):
    handles = []
    for step in range(3):
        log.step_ended({"step": step}, HALF_A_SECOND)
        loss = torch.tensor(1.0)
        handles.append(Handle(loss, 10.0 + step))
        log.loss(loss, handles[-1])
        assert [handle.done for handle in handles] == [True] * step + [False]
        assert [row["loss"] for row in log.written()] == [10.0, 11.0][:step]
    log.step_ended({"step": 3}, HALF_A_SECOND)
    called = []
    log.loss(torch.tensor(2.0), lambda: called.append(1))
    log.flush()
    assert called == [1], "a function may wait too"
    assert [row["loss"] for row in log.written()] == [10.0, 11.0, 12.0, 2.0]


def test_failed_step_leaves_those_before_it_and_waits_for_no_rank(log):
    log.step_ended({"step": 0}, HALF_A_SECOND)
    log.loss(torch.tensor(1.0))
    log.salvage()
    assert [row["step"] for row in log.written()] == [0]
    log.step_ended({"step": 1}, HALF_A_SECOND)
    lost = Handle(torch.tensor(1.0), 2.0)
    log.loss(lost.loss, lost)
    log.salvage()
    assert not lost.done
    assert [row["step"] for row in log.written()] == [0]


def test_loss_forgotten_or_doubled_gets_a_sentence(log):
    with pytest.raises(RuntimeError, match="once behind each"):
        log.loss(torch.tensor(1.0))
    log.step_ended({"step": 0}, HALF_A_SECOND)
    with pytest.raises(RuntimeError, match="step 0 has no loss"):
        log.step_ended({"step": 1}, HALF_A_SECOND)
    log.loss(torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="once behind each"):
        log.loss(torch.tensor(1.0))


def test_clock_of_the_cpu_measures_the_block_alone():
    clock, before = Clock(torch.device("cpu")), time.perf_counter()
    clock.begin()
    time.sleep(0.02)
    result = clock.end()
    longest = time.perf_counter() - before
    time.sleep(0.05)
    assert result.ready()
    assert 0.02 <= result.get() <= longest


def test_loss_of_a_rehearsal_is_none():
    assert step_clock.read_later(torch.empty((), device="meta")).get() is None


ENDS = {"sys.exit(3)": 3, "1 / 0": 1, "sys.exit()": 0}
EACH = """
import os, runpy, sys, torch._dynamo
for script in sys.argv[1:]:
    if (child := os.fork()) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os._exit(0)
sys.argv = [script, "--steps", "1", "--global-batch", "2", "--run-dir", f"{script}-run"]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.slow
def test_script_that_ends_after_finish_ends_with_its_own_exit_code(tmp_path):
    """Each in a Python that ends as any does; one has loaded torch for all."""
    for number, end in enumerate(ENDS):
        text = (SRC / "_train_cpu.py").read_text() + f"\nimport sys\n{end}\n"
        (tmp_path / f"{number}.py").write_text(text)
    scripts = sorted(tmp_path.glob("*.py"))
    ended = run_program([sys.executable, "-uc", EACH, *scripts], check=True)
    assert ended.stdout.split() == [str(code) for code in ENDS.values()], ended.stderr
    folders = sorted(tmp_path.glob("*-run"))
    assert [summary.read(folder)["status"] for folder in folders] == ["ok", "failed", "ok"]
