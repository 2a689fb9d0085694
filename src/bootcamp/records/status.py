"""How a running job is, from its record files alone: `vitals.Reader(folder).look() -> State`.

Which files there are stands in logs/README.md. A half-written line is no error. Beside them only
/proc is asked whether a rank's process is on this machine, and for its memory. Standard library
only.
"""

import contextlib
import json
import math
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bootcamp.records import heartbeat
from bootcamp.records.runs import Run

POINTS = 200  # of a curve
RECENT_STEPS = 20  # that the present speed is taken from
SILENT_SECONDS = 10.0  # without a step a rank is remarked on
# So long without a sign a run is given up: without a process here, where that can't be seen, and
# before its first step, when it may be loading or wait for its devices.
LOST_SECONDS, LOST_UNSEEN_SECONDS, LOST_BEFORE_SECONDS = 60.0, 600.0, 3600.0


@dataclass(frozen=True)
class Rank:
    """One rank: its steps since it started, its last sign of life, and its memory.

    steps_done, seconds_ago: None before the first sign. here: whether its process is on this
    machine, None where that can't be seen. memory_bytes: of the process now, None without one.
    peak_bytes: as it recorded at its end, None before.
    """

    rank: int
    steps_done: int | None = None
    seconds_ago: float | None = None
    here: bool | None = None
    memory_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class State:
    """A run at one moment.

    status: that of the summary, or "lost" where it says running and nobody is there any more.
    losses, rates (samples per second): (step, value), at most POINTS of them, None for no number.
    seconds: since it began. step_seconds: median of the last steps.
    """

    folder: Path
    status: str
    label: str
    steps_done: int
    steps: int | None
    seconds: float
    step_seconds: float | None
    losses: list[tuple[float, float | None]]
    rates: list[tuple[float, float | None]]
    ranks: list[Rank]
    notes: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.status != "running"


class _Step(NamedTuple):
    loss: float | None
    seconds: float
    rate: float


class Reader:
    """Reads a run's files again and again, of its steps only what is new."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._rows: dict[int, _Step] = {}
        self._position = 0

    def look(self, now: float | None = None) -> State:
        """The run as it is now. now: seconds since 1970."""
        now = time.time() if now is None else now
        said = said_of(self.folder)
        run = Run(self.folder)  # a new one each time: its config may have come meanwhile
        run.config = json_of(self.folder / "config.json")
        self._read_steps()
        steps = sorted(self._rows)
        ranks = [_rank(self.folder, rank, now) for rank in range(_world(run))]
        status = said["status"]
        if status == "running" and _is_lost(self.folder, ranks, now):
            status = "lost"
        began = run.config.get("started_unix_seconds", _changed(self.folder))
        until = now if status == "running" else min(now, last_sign(self.folder))
        recent = [self._rows[step].seconds for step in steps[-RECENT_STEPS:]]
        return State(
            folder=self.folder,
            status=status,
            label=run.label if run.config else self.folder.name,
            steps_done=steps[-1] + 1 if steps else 0,
            steps=run.config.get("steps"),
            seconds=max(0.0, until - began),
            step_seconds=statistics.median(recent) if recent else None,
            losses=_thinned([(step, self._rows[step].loss) for step in steps]),
            rates=_thinned([(step, self._rows[step].rate) for step in steps]),
            ranks=ranks,
            notes=[*_notes(status, said, ranks), *self._notes_on_numbers(run, steps)],
        )

    def _notes_on_numbers(self, run: Run, steps: list[int]) -> list[str]:
        broken = [step for step in steps if not _is_number(self._rows[step].loss)]
        notes = [f"The loss is not a number from step {broken[0]} on."] if broken else []
        if run.config and run.oversubscribed:
            notes.append("More ranks than cores: the speed means nothing.")
        return notes

    def _read_steps(self) -> None:
        """Take in whole new lines of steps.jsonl; the last row of a step counts."""
        try:
            with open(self.folder / "steps.jsonl", "rb") as file:
                if file.seek(0, os.SEEK_END) < self._position:
                    self._rows, self._position = {}, 0  # another run's file in the same place
                file.seek(self._position)
                text = file.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, ZeroDivisionError):  # torn
                row = json.loads(line)
                rate = row["samples"] / row["seconds"]
                self._rows[int(row["step"])] = _Step(row["loss"], row["seconds"], rate)


def _world(run: Run) -> int:
    """How many ranks there are: as configured, or as many as have given a sign."""
    seen = [int(path.stem) for path in _beats(run.folder) if path.stem.isdigit()]
    return max([run.world if run.config else 0, *(rank + 1 for rank in seen)])


def _rank(folder: Path, rank: int, now: float) -> Rank:
    path = folder / "ranks" / f"{rank}.beat"
    record = json_of(folder / "ranks" / f"{rank}.json")
    peak = record.get("peak_bytes")
    if (beat := heartbeat.read(path)) is None:
        return Rank(rank, peak_bytes=peak)
    process, steps_done, when = beat
    here = holds_open(process, path)
    memory = _resident_bytes(process) if here else None
    return Rank(rank, steps_done, max(0.0, now - when), here, memory, peak)


def holds_open(process: int, path: Path) -> bool | None:
    """Whether this process has the file open; None where that can't be seen.

    A rank keeps the file of its signs of life open. So a process that has taken over its number, or
    one of another machine, is not taken for it.
    """
    if not Path("/proc/self/fd").exists():  # macOS
        return None
    target = str(path.resolve())
    try:
        return any(os.readlink(entry.path) == target for entry in os.scandir(f"/proc/{process}/fd"))
    except FileNotFoundError:
        return False
    except OSError:  # another user's, or it is ending
        return None


def _resident_bytes(process: int) -> int | None:
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def json_of(path: Path) -> dict:
    """A file's JSON object; empty where there is none, or half of one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def said_of(folder: Path) -> dict:
    """The run's summary, of which half a one is none yet."""
    return {"status": "running", **json_of(folder / "summary.json")}


def _beats(folder: Path) -> list[Path]:
    return list((folder / "ranks").glob("*.beat"))


def last_sign(folder: Path) -> float:
    """When anything of this run was last written, in seconds since 1970; 0 if there is nothing."""
    names = ("summary.json", "config.json", "steps.jsonl")
    return max(_changed(path) for path in [*(folder / name for name in names), *_beats(folder)])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_going(folder: Path, now: float | None = None) -> bool:
    """Whether the record says running and somebody still writes it, or may."""
    if said_of(folder)["status"] != "running":
        return False
    now = time.time() if now is None else now
    ranks = [_rank(folder, int(path.stem), now) for path in _beats(folder)]
    return not _is_lost(folder, ranks, now)


def _is_lost(folder: Path, ranks: list[Rank], now: float) -> bool:
    """Whether all signs are old and no process of the run is on this machine."""
    if any(rank.here for rank in ranks):
        return False
    seen = [rank for rank in ranks if rank.steps_done is not None]
    patience = LOST_SECONDS if seen else LOST_BEFORE_SECONDS
    if any(rank.here is None for rank in seen):
        patience = LOST_UNSEEN_SECONDS
    return now - last_sign(folder) > patience


def _thinned(points: list[tuple]) -> list[tuple[float, float | None]]:
    """At most POINTS points: the mean of as many neighbours each, None where one is no number."""
    each = math.ceil(len(points) / POINTS) or 1
    groups = [points[start : start + each] for start in range(0, len(points), each)]
    return [(group[-1][0], _mean([value for _, value in group])) for group in groups]


def _mean(values: list) -> float | None:
    fine = all(value is not None and _is_number(value) for value in values)
    return sum(values) / len(values) if fine else None


def _is_number(value: float | None) -> bool:
    """Whether it is one; None, which a rehearsal writes, is not meant to be."""
    return value is None or math.isfinite(value)


def _notes(status: str, said: dict, ranks: list[Rank]) -> list[str]:
    """What a reader must know of how the run goes or ended, a sentence each."""
    if status == "lost":
        return [
            "The record says running, but for long there was no sign of it, and no process of it "
            "is on this machine: it was probably killed."
        ]
    if status == "running":
        return [_remark(rank) for rank in ranks if _remark(rank)]
    error = said.get("error") if status != "ok" else None
    return [str(error.get("message", "")).strip().partition("\n")[0]] if error else []


def _remark(rank: Rank) -> str:
    if rank.here is False and rank.peak_bytes is None:
        return f"The process of rank {rank.rank} is not on this machine, or has ended."
    if rank.seconds_ago is not None and rank.seconds_ago > SILENT_SECONDS:
        return f"Rank {rank.rank} has finished no step for {rank.seconds_ago:.0f} s."
    return ""
