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
        """Return the number, waiting for it if need be."""
        if self.event:
            self.event.synchronize()
        return self.read()


class Clock:
    """Time a step: on a GPU between two events in its stream, so that no thread waits for it."""

    def __init__(self, device: torch.device):
        self._is_gpu = device.type == "cuda"

    def begin(self) -> None:
        self._began = self._mark()

    def end(self) -> Result:
        began, ended = self._began, self._mark()
        if self._is_gpu:
            return Result(lambda: began.elapsed_time(ended) / 1e3, ended)
        return Result(lambda: ended - began)

    def _mark(self):
        if not self._is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # in the stream of this rank's GPU, which config.parse has set
        return event


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


class StepLog:
    """The rows of steps.jsonl, each written when its seconds and its loss are known.

    path: None on ranks that write none; these too wait for a loss's reduction, so that no
    collective is left over when the process group ends.
    """

    def __init__(self, path: Path | None):
        self._file = open(path, "a", buffering=1) if path else None  # noqa: SIM115
        self._last_step = self._last_loss = None  # not read yet: (row, seconds), (loss, pending)
        self._rows: deque[tuple[dict, Result, Result]] = deque()  # rows, losses, seconds

    def step_ended(self, row: dict, seconds: Result) -> None:
        """Add a step, and write those before it whose numbers a GPU does not still compute."""
        self._read_last_loss()
        while self._rows and all(number.ready() for number in self._rows[0][1:]):
            self._write_row()
        self._last_step = row, seconds

    def loss(self, loss: torch.Tensor, pending=None) -> None:
        """Take the loss of the last step. pending: a handle with `wait()`, or a function."""
        if not self._last_step or self._last_loss:
            raise RuntimeError("run.loss(...) belongs once behind each `with run.step(step):`")
        self._last_loss = loss, pending

    def flush(self) -> None:
        """Wait for all numbers that are on their way, and write them."""
        self._read_last_loss()
        while self._rows:
            self._write_row()

    def salvage(self) -> None:
        """Write, after an exception, rows that need no other rank, which may have failed too."""
        loss, pending = self._last_loss or (None, None)
        is_completed = getattr(pending, "is_completed", lambda: pending is None)
        if loss is None or not is_completed():
            self._last_step = None
        self.flush()

    def _read_last_loss(self) -> None:
        """Begin to read the last step's loss, once it is reduced."""
        if not self._last_step:
            return
        row, seconds = self._last_step
        if not self._last_loss:
            raise RuntimeError(f"step {row['step']} has no loss: call run.loss(...) behind it")
        loss, pending = self._last_loss
        if pending:
            getattr(pending, "wait", pending)()  # on NCCL only the GPU's stream waits
        self._rows.append((row, read_later(loss), seconds))
        self._last_step = self._last_loss = None

    def _write_row(self) -> None:
        row, loss, seconds = self._rows.popleft()
        numbers = {"loss": loss.get(), "seconds": seconds.get()}
        if self._file:
            self._file.write(json.dumps(row | numbers) + "\n")
