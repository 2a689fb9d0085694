"""How a running job is doing, from its files alone: `status.Reader(folder).look() -> State`.

logs/README.md lists the files. A half-written line is no error. Only whether a rank's process is on
this machine, and its memory, come from /proc. Standard library only.
"""

import math
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp.files import read_json
from bootcamp.records import heartbeat, summary
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps

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


class Reader:
    """Reads a run's files again and again, of its steps only what is new."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._steps = Steps(folder)

    def look(self, now: float | None = None) -> State:
        """The run as it is now. now: seconds since 1970."""
        now = time.time() if now is None else now
        said = summary.read(self.folder)
        run = Run(self.folder)  # a new one each time: its config may have come meanwhile
        self._steps.new()
        rows = [row for row in self._steps.rows if _is_measured(row)]
        ranks = [_rank(self.folder, rank, now) for rank in range(_world(run))]
        status = said["status"]
        if status == "running" and _is_lost(self.folder, ranks, now):
            status = "lost"
        began = run.config.get("started_unix_seconds", _changed(self.folder))
        until = now if status == "running" else min(now, last_sign(self.folder))
        recent = [row["seconds"] for row in rows[-RECENT_STEPS:]]
        return State(
            folder=self.folder,
            status=status,
            label=run.label if run.config else self.folder.name,
            steps_done=rows[-1]["step"] + 1 if rows else 0,
            steps=run.config.get("steps"),
            seconds=max(0.0, until - began),
            step_seconds=statistics.median(recent) if recent else None,
            losses=_thinned([(row["step"], row["loss"]) for row in rows]),
            rates=_thinned([(row["step"], row["samples"] / row["seconds"]) for row in rows]),
            ranks=ranks,
            notes=[*_notes(status, said, ranks), *_notes_on_numbers(run, rows)],
        )


def _is_measured(row: dict) -> bool:
    """Whether a row has what a curve is drawn from; a torn one may have less."""
    return {"loss", "seconds", "samples"} <= row.keys() and bool(row["seconds"])


def _notes_on_numbers(run: Run, rows: list[dict]) -> list[str]:
    broken = [row["step"] for row in rows if not _is_number(row["loss"])]
    notes = [f"The loss is not a number from step {broken[0]} on."] if broken else []
    if run.config and run.oversubscribed:
        notes.append("More ranks than cores: the speed means nothing.")
    if run.shared_cores:
        notes.append("Another run used the same cores: the speed means nothing.")
    return notes


def _world(run: Run) -> int:
    """How many ranks there are: as configured, or as many as have given a sign."""
    seen = [int(path.stem) for path in _beats(run.folder) if path.stem.isdigit()]
    return max([run.world if run.config else 0, *(rank + 1 for rank in seen)])


def _rank(folder: Path, rank: int, now: float) -> Rank:
    path = folder / "ranks" / f"{rank}.beat"
    record = read_json(folder / "ranks" / f"{rank}.json")
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
    if summary.read(folder)["status"] != "running":
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
