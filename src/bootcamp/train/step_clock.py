"""Log seconds and losses of steps without making any step wait.

A loss may still be on its way between ranks, or on a GPU, when the next step begins. So rows wait
in a queue until their numbers are there, at the latest in `flush`.
"""

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Result:
    """A number that is there once a GPU's event has come; at once without an event."""

    read: Callable[[], float | None]
    event: torch.cuda.Event | None = None

    def ready(self) -> bool:
        return self.event is None or self.event.query()

    def get(self) -> float | None:
        """The number, waited for if need be."""
        if self.event:
            self.event.synchronize()
        return self.read()


class CpuClock:
    """Wall time of a block of code."""

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> Result:
        seconds = time.perf_counter() - self._began
        return Result(lambda: seconds)


class CudaClock:
    """Time between two events in a GPU's stream: no thread waits for the GPU to measure it."""

    def __init__(self, event=torch.cuda.Event):
        self._event = event

    def begin(self) -> None:
        self._began = self._mark()

    def end(self) -> Result:
        began, ended = self._began, self._mark()
        return Result(lambda: began.elapsed_time(ended) / 1e3, ended)

    def _mark(self):
        event = self._event(enable_timing=True)
        event.record()  # in the stream of this rank's GPU, which config.parse has set
        return event


def clock_of(device: torch.device) -> CpuClock | CudaClock:
    return CudaClock() if device.type == "cuda" else CpuClock()


def read_later(loss: torch.Tensor) -> Result:
    """Read a loss of shape (); from a GPU it is copied beside the computation. None on "meta"."""
    if loss.is_meta:
        return Result(lambda: None)
    if not loss.is_cuda:
        return Result(loss.item)
    with torch.cuda.device(loss.device):
        copy = torch.empty((), dtype=loss.dtype, pin_memory=True)
        copy.copy_(loss, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return Result(copy.item, event)


@dataclass
class Entry:
    """A step whose row is not written yet. pending: what the loss has to wait for."""

    row: dict
    seconds: Result
    loss: torch.Tensor | None = None
    pending: object = None
    result: Result | None = None

    def fetch(self, read: Callable) -> None:
        """Begin to read the loss, once it is reduced."""
        if self.result:
            return
        if self.loss is None:
            raise RuntimeError(
                f"step {self.row['step']} has no loss: call run.loss(...) after each step's block"
            )
        if self.pending:
            getattr(self.pending, "wait", self.pending)()  # on NCCL only the GPU's stream waits
        self.result, self.pending = read(self.loss), None

    def reduced(self) -> bool:
        """Whether the loss can be read without waiting for another rank."""
        completed = getattr(self.pending, "is_completed", lambda: self.pending is None)
        return self.loss is not None and completed()


class StepLog:
    """The rows of steps.jsonl, each written when its seconds and its loss are known.

    path: None on ranks that write none; these too wait for a loss's reduction, so that no
    collective is left over when the process group ends.
    """

    def __init__(self, path: Path | None, read=read_later):
        self._file = open(path, "a") if path else None  # noqa: SIM115
        self._read = read
        self._entries: deque[Entry] = deque()

    def step_ended(self, row: dict, seconds: Result) -> None:
        """Add a step, and write those before it whose numbers a GPU does not still compute."""
        for entry in self._entries:
            entry.fetch(self._read)
        self._write(lambda entry: entry.seconds.ready() and entry.result.ready())
        self._entries.append(Entry(row, seconds))

    def loss(self, loss: torch.Tensor, pending=None) -> None:
        """Take the loss of the last step. pending: a handle with `wait()`, or a function.

        Raises RuntimeError if no step has ended since the last loss.
        """
        if not self._entries or self._entries[-1].loss is not None:
            raise RuntimeError("run.loss(...) belongs once behind each `with run.step(step):`")
        self._entries[-1].loss, self._entries[-1].pending = loss, pending

    def flush(self) -> None:
        """Wait for all that is on its way, and write it."""
        self._write(lambda entry: True)

    def salvage(self) -> None:
        """After an exception: write what needs no other rank, which may have failed too."""
        self._write(Entry.reduced)

    def _write(self, may_be: Callable[[Entry], bool]) -> None:
        while self._entries and may_be(self._entries[0]):
            entry = self._entries.popleft()
            entry.fetch(self._read)
            numbers = {"loss": entry.result.get(), "seconds": entry.seconds.get()}
            if self._file:
                self._file.write(json.dumps(entry.row | numbers) + "\n")
                self._file.flush()
