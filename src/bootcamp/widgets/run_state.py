"""How a running job is doing, from its files (logs/README.md): `Reader(folder).look() -> State`."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from bootcamp.files import read_json
from bootcamp.launcher.hang import process_of
from bootcamp.records import heartbeat, summary
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps

POINTS = 200  # of a curve
RECENT_STEPS = 20  # that the present speed is taken from
SILENT_SECONDS = 10.0  # without a step until a note names the rank
# A run is taken for lost after so long without a sign: without a process here, where that can't be
# seen, and before its first step, when it may be loading or waiting for its devices.
LOST_SECONDS, LOST_UNSEEN_SECONDS, LOST_BEFORE_SECONDS = 60.0, 600.0, 3600.0
LOST = (
    "The summary says running, but there has been no sign of the run for long, and none of its "
    "processes is on this machine: it was probably killed."
)


@dataclass(frozen=True)
class Rank:
    """One rank; None is what is not known.

    here: whether its process is on this machine. memory_bytes: of the process now; peak_bytes: as
    it recorded at its end.
    """

    rank: int
    peak_bytes: int | None = None
    steps_done: int | None = None
    seconds_ago: float | None = None
    here: bool | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class State:
    """A run at one moment.

    status: that of the summary, or "lost" for a run that ended without writing it. losses, rates
    (samples per second): (step, value), at most POINTS of them, None for no number. seconds: since
    it began. step_seconds: median of the last steps.
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
        run = Run(self.folder)  # a new one each time: its config may have come meanwhile
        self._steps.new()
        measured = {"loss", "seconds", "samples"}
        rows = [r for r in self._steps.rows if measured <= r.keys() and r["seconds"]]
        ranks = _ranks(self.folder, now, run.world if run.config else 0)
        lost = run.status == "running" and _is_lost(self.folder, ranks, now)
        status = "lost" if lost else run.status
        began = run.config.get("started_unix_seconds", _changed(self.folder))
        until = now if status == "running" else min(now, _last_sign(self.folder))
        recent = [row["seconds"] for row in rows[-RECENT_STEPS:]]
        return State(
            folder=self.folder,
            status=status,
            label=run.label if run.config else self.folder.name,
            steps_done=rows[-1]["step"] + 1 if rows else 0,
            steps=run.config.get("steps"),
            seconds=max(0.0, until - began),
            step_seconds=median(recent) if recent else None,
            losses=_thinned([(row["step"], row["loss"]) for row in rows]),
            rates=_thinned([(row["step"], row["samples"] / row["seconds"]) for row in rows]),
            ranks=ranks,
            notes=[*_notes_on_status(status, run, ranks), *_notes_on_numbers(run, rows)],
        )


def is_going(folder: Path, now: float | None = None) -> bool:
    """Whether the summary says running and a process still writes the record, or may."""
    now = time.time() if now is None else now
    running = summary.read(folder)["status"] == "running"
    return running and not _is_lost(folder, _ranks(folder, now), now)


def _ranks(folder: Path, now: float, world: int = 0) -> list[Rank]:
    """As many ranks as are configured, or have given a sign."""
    seen = [int(path.stem) for path in (folder / "ranks").glob("*.beat") if path.stem.isdigit()]
    return [_rank(folder, rank, now) for rank in range(max([world, *(s + 1 for s in seen)]))]


def _rank(folder: Path, rank: int, now: float) -> Rank:
    path = folder / "ranks" / f"{rank}.beat"
    peak = read_json(folder / "ranks" / f"{rank}.json").get("peak_bytes")
    if (beat := heartbeat.read(path)) is None:
        return Rank(rank, peak)
    number, steps_done, when = beat
    return Rank(rank, peak, steps_done, max(0.0, now - when), *process_of(number, path))


def _is_lost(folder: Path, ranks: list[Rank], now: float) -> bool:
    """Whether all signs are old and no process of the run is on this machine."""
    if any(rank.here for rank in ranks):
        return False
    seen = [rank for rank in ranks if rank.steps_done is not None]
    patience = LOST_SECONDS if seen else LOST_BEFORE_SECONDS
    if any(rank.here is None for rank in seen):
        patience = LOST_UNSEEN_SECONDS
    return now - _last_sign(folder) > patience


def _last_sign(folder: Path) -> float:
    """When anything of this run was last written, in seconds since 1970; 0 if there is nothing."""
    names = ("summary.json", "config.json", "steps.jsonl", "ranks/*.beat")
    return max([0.0, *(_changed(path) for name in names for path in folder.glob(name))])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _thinned(points: list[tuple]) -> list[tuple[float, float | None]]:
    """At most POINTS points: the mean of as many neighbours each, None where one is no number."""
    each = math.ceil(len(points) / POINTS) or 1
    means = []
    for start in range(0, len(points), each):
        steps, values = zip(*points[start : start + each], strict=True)
        good = all(value is not None and math.isfinite(value) for value in values)
        means.append((steps[-1], fmean(values) if good else None))
    return means


def _notes_on_status(status: str, run: Run, ranks: list[Rank]) -> list[str]:
    if status == "lost":
        return [LOST]
    if status != "running":
        message = (run.summary.get("error") or {}).get("message", "") if status != "ok" else ""
        return [str(message).strip().partition("\n")[0]] if message else []
    notes = []
    for each in ranks:
        if each.here is False and each.peak_bytes is None:
            notes += [f"The process of rank {each.rank} is not on this machine, or has ended."]
        elif (each.seconds_ago or 0) > SILENT_SECONDS:
            notes += [f"Rank {each.rank} has finished no step for {each.seconds_ago:.0f} s."]
    return notes


def _notes_on_numbers(run: Run, rows: list[dict]) -> list[str]:
    broken = [r["step"] for r in rows if r["loss"] is not None and not math.isfinite(r["loss"])]
    notes = [f"The loss is not a number from step {broken[0]} on."] if broken else []
    if run.config and run.oversubscribed:
        notes.append("More ranks than cores: the speed means nothing.")
    if run.shared_cores:
        notes.append("Another run used the same cores: the speed means nothing.")
    return notes
