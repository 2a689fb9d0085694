"""Follow a running job by the files of its record: `monitor.watch()`, then start a run.

    monitor.watch()                         the newest run that goes on, or the next that begins
    launch("ddp", ranks=2, steps=500)       in the same cell or a later one, or in a terminal
    monitor.watch("logs/20261121-...")      this run

A thread reads the files, so the picture also moves while a cell is busy in `launch`. It is HTML and
SVG, not drawn by matplotlib: a picture each half second must not take the ranks' cores.
"""

import atexit
import contextlib
import html
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from bootcamp import machine
from bootcamp.files import read_json
from bootcamp.launcher.hang import inspect_process
from bootcamp.paths import LOGS, shown
from bootcamp.records import heartbeat, summary
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps
from bootcamp.table import Table
from bootcamp.units import duration, size, three_digits

LOOK_SECONDS = 0.5
WAIT_SECONDS = 120.0  # for a run to begin: loading torch can take long
THREAD = "bootcamp-monitor"
WORDS = {"ok": "ended well", "oom": "failed, out of memory"}  # of a status; others are words
WIDTH, HEIGHT = 360, 120  # of a curve, in pixels
LINE = "#1A85C8"  # at least 3:1 against white and against JupyterLab's dark background
POINTS = 200  # of a curve, at most
RECENT_STEPS = 20  # that the present speed is taken from
SILENT_SECONDS = 10.0  # without a step until a note names the rank
# A run is taken for lost after so long without a sign: without a process here, or where that can't
# be seen, as before its first step, when it may be loading or waiting for its devices.
LOST_SECONDS, LOST_UNSEEN_SECONDS = 60.0, 3600.0
LOST = (
    "The summary says running, but there has been no sign of the run for long, and none of its "
    "processes is on this machine: it was probably killed."
)
STOPPED = "This monitor was stopped; the run was not."


@dataclass(frozen=True)
class Rank:
    """One rank; None where something is not known."""

    rank: int
    peak_bytes: int | None = None  # as it recorded at its end
    steps_done: int | None = None  # since its start, which for a resumed run is not the first step
    seconds_ago: float | None = None  # since its last sign of life
    here: bool | None = None  # whether its process is on this machine
    memory_bytes: int | None = None  # of its process now


class State:
    """A run at one moment, read from its files."""

    def __init__(self, folder: Path, steps: Steps, now: float | None = None):
        """Read what `steps` has not read before. now: seconds since 1970."""
        now = now or time.time()
        run = Run(folder)  # a new one each time: its config may have come meanwhile
        steps.read_new()
        measured = {"loss", "seconds", "samples"}
        rows = [row for row in steps.rows if measured <= row.keys() and row["seconds"]]
        self.folder, self.ranks = folder, _read_ranks(folder, now, run.world if run.config else 0)
        self.status = read_status(folder, now, self.ranks)
        self.ended = self.status != "running"
        self.label = run.label if run.config else folder.name
        recorded = rows[-1]["step"] + 1 if rows else 0  # with its loss, which comes later
        by_all = min((rank.steps_done or 0 for rank in self.ranks), default=0)
        self.steps, self.steps_done = run.config.get("steps"), max(recorded, by_all)
        began = run.config.get("started_unix_seconds", now)
        self.seconds = max(0.0, (min(now, _last_sign(folder)) if self.ended else now) - began)
        self.step_seconds = median(r["seconds"] for r in rows[-RECENT_STEPS:]) if rows else 0.0
        # (step, value), where a value may be None or no number; rates: samples per second
        self.losses = [(row["step"], row["loss"]) for row in rows]
        self.rates = [(row["step"], row["samples"] / row["seconds"]) for row in rows]
        self.notes = _list_notes(self, run, rows)


def read_status(folder: Path, now: float | None = None, ranks: list[Rank] | None = None) -> str:
    """Read a run's status: "lost" if it says running, all signs are old and no process is here."""
    now, status = now or time.time(), summary.read(folder)["status"]
    if status != "running":
        return status
    ranks = _read_ranks(folder, now) if ranks is None else ranks
    here = [rank.here for rank in ranks if rank.steps_done is not None]
    patience = LOST_SECONDS if here and None not in here else LOST_UNSEEN_SECONDS
    is_lost = not any(here) and now - _last_sign(folder) > patience
    return "lost" if is_lost else status


def _read_ranks(folder: Path, now: float, world: int = 0) -> list[Rank]:
    """Return as many ranks as are configured, or have given a sign."""
    beats, ranks = heartbeat.read_all(folder), []
    for rank in range(max([world, *(rank + 1 for rank in beats)])):
        known, path = (), folder / "ranks" / f"{rank}.beat"
        if rank in beats:
            process_id, steps_done, when = beats[rank]
            known = steps_done, max(0.0, now - when), *inspect_process(process_id, path)
        peak_bytes = read_json(path.with_suffix(".json")).get("peak_bytes")
        ranks.append(Rank(rank, peak_bytes, *known))
    return ranks


def _last_sign(folder: Path) -> float:
    """Return when any file of the run was last written, in seconds since 1970; 0 without files."""
    names = ("summary.json", "config.json", "steps.jsonl", "ranks/*.beat")
    return max((path.stat().st_mtime for name in names for path in folder.glob(name)), default=0.0)


def _list_notes(state: State, run: Run, rows: list[dict]) -> list[str]:
    notes = []
    if state.status == "lost":
        notes = [LOST]
    elif state.ended and state.status != "ok":
        message = str((run.summary.get("error") or {}).get("message", "")).strip()
        notes = [message.partition("\n")[0]] if message else []
    elif not state.ended:
        for rank in state.ranks:
            if rank.here is False and rank.peak_bytes is None:
                notes += [f"The process of rank {rank.rank} is not on this machine, or has ended."]
            elif (rank.seconds_ago or 0) > SILENT_SECONDS:
                notes += [f"Rank {rank.rank} has finished no step for {rank.seconds_ago:.0f} s."]
    broken = [r["step"] for r in rows if r["loss"] is not None and not math.isfinite(r["loss"])]
    if broken:
        notes.append(f"The loss is not a number from step {broken[0]} on.")
    if run.oversubscribed or run.shared_cores:  # the label says which
        notes.append("More ranks than cores, or shared cores: the speed means nothing.")
    return notes


class Frame:
    """A picture of the monitor: HTML in a notebook, lines elsewhere."""

    def __init__(self, text: str, content: str = ""):
        self.text, self.content = text, content or f"<p>{html.escape(text)}</p>"

    def _repr_html_(self) -> str:
        return self.content

    def __repr__(self) -> str:
        return self.text


def draw(state: State, remarks: Iterable[str] = (), at: str = "") -> Frame:
    """Draw a state. remarks: sentences to add. at: the time of day to name."""
    head, ended = _headline(state), state.ended

    def sign_of_life(rank: Rank) -> str:
        if ended and rank.peak_bytes is not None:
            return "at its end"
        sign = "none yet" if rank.seconds_ago is None else f"{duration(rank.seconds_ago)} ago"
        return f"{sign}, process gone" if rank.here is False else sign

    columns = {
        "rank": "rank",
        "last sign of life": sign_of_life,
        "steps since start": "steps_done",
        "memory now": lambda rank: size(None if ended else rank.memory_bytes),
        "peak memory": lambda rank: size(rank.peak_bytes),
    }
    ranks = Table.of(state.ranks, columns)
    notes = [*state.notes, *remarks]
    where = shown(state.folder) + (f", as of {at}" if at else "")
    bar = f'<progress max="{state.steps}" value="{state.steps_done}" style="width:100%"></progress>'
    content = (
        f'<div role="region" aria-label="Monitor: {html.escape(head)}">'
        f"<p><b>{html.escape(head)}</b><br><code>{html.escape(where)}</code></p>"
        f"{bar if state.steps else ''}"
        '<div style="display:flex;flex-wrap:wrap;gap:8px 24px">'
        f"{_curve('loss', '', state.losses)}{_curve('speed', ' samples/s', state.rates, 0)}</div>"
        f"{ranks._repr_html_()}{''.join(f'<p>{html.escape(note)}</p>' for note in notes)}</div>"
    )
    return Frame("\n".join([head, str(ranks), *notes]), content)


def _headline(state: State) -> str:
    of = f" of {state.steps}" if state.steps else ""
    done = f"{state.steps_done}{of} steps in {duration(state.seconds)}"
    if state.ended:
        return f"{state.label}: {WORDS.get(state.status, state.status)}, {done}"
    if not state.steps_done:
        return f"{state.label}: starting, {duration(state.seconds)} so far"
    left = ((state.steps or 0) - state.steps_done) * state.step_seconds
    soon = f", about {duration(left)} left" if left > 0 else ""
    return f"{state.label}: running, {done}{soon}"


def _curve(name: str, unit: str, points: list[tuple], floor: float = math.inf) -> str:
    """Draw (step, value) as SVG and text; the axis begins at `floor`, or at a value below it."""
    finite = [value for _, value in points if value is not None and math.isfinite(value)]
    if not finite:
        return f'<p style="width:{WIDTH}px">{name}: nothing yet</p>'
    low, high, first, last = min(finite), max(finite), points[0][0], points[-1][0]
    words = f"{name} at the last step: {three_digits(finite[-1])}{unit}"
    words += f"; from {three_digits(low)} to {three_digits(high)} so far"
    path, pen, bottom = "", "M", min(low, floor)
    for step, value in points[:: len(points) // POINTS + 1]:
        known = value is not None and math.isfinite(value)
        if known:
            x = 3 + (WIDTH - 6) * (step - first) / (last - first or 1)
            y = 5 + (HEIGHT - 10) * (high - value) / (high - bottom or 1)
            path += f"{pen}{x:.1f} {y:.1f}" + ("h0.1" if pen == "M" else "")  # one is a dot
        pen = "L" if known else "M"
    return (
        f'<figure style="margin:0;width:{WIDTH}px;max-width:100%">'
        f"<figcaption>{html.escape(words)}</figcaption>"
        f'<svg role="img" aria-label="{html.escape(words)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="2" stroke-linecap="round"/>'
        f"</svg><div>steps {first} to {last}</div></figure>"
    )


def describe_load() -> str:
    """Describe how busy the machine is: its CPU and memory, and each GPU."""
    memory = psutil.virtual_memory()
    words = f"All of this machine: CPU {psutil.cpu_percent():.0f} %, memory "
    words += f"{size(memory.used)} of {size(memory.total)}."
    with contextlib.suppress(Exception):  # without nvitop or a working driver: no sentence
        if machine.gpu_names():  # without one nvitop writes an error in capitals
            from nvitop import Device

            for gpu in Device.all():
                used = f"{size(gpu.memory_used())} of {size(gpu.memory_total())}"
                words += f" GPU {gpu.index}: {gpu.gpu_utilization()} %, memory {used}."
    return words


class Monitor(threading.Thread):
    """A picture that follows a run; where there is no notebook, each picture is printed."""

    def __init__(self, folder: Path | None, wait_seconds: float):
        from IPython.display import display

        super().__init__(name=THREAD, daemon=True)
        self.folder, self.state = folder, None  # None until there is one
        self._began, self._deadline = time.time(), time.monotonic() + wait_seconds
        self._stopped = threading.Event()
        self._goes_on = self._look()
        picture = display(self._draw(), display_id=True)
        self._show = picture.update if picture else partial(print, flush=True)
        self.start()

    def stop(self) -> None:
        """End the thread; the last picture stays."""
        self._stopped.set()
        self.join()

    def _ipython_display_(self) -> None:
        """Show nothing more as the value of the cell: the picture is there already."""

    def run(self) -> None:
        """Draw again and again, until the run ends or the monitor is stopped."""
        try:
            while self._goes_on and not self._stopped.wait(LOOK_SECONDS):
                self._goes_on = self._look()
                self._show(self._draw())
            if self._goes_on:  # the picture says that the monitor was stopped
                self._show(self._draw())
        except Exception as error:  # raised in a thread, it would not be seen
            self._show(Frame(f"The monitor failed: {error!r}."))

    def _look(self) -> bool:
        """Take in what is new; return whether there may be more."""
        if self.state is None:
            self.folder = self.folder or _newest_run(self._began)
            if self.folder is None or not (self.folder / "summary.json").exists():
                return time.monotonic() < self._deadline
            self._steps = Steps(self.folder)
        self.state = State(self.folder, self._steps)
        return not self.state.ended

    def _draw(self) -> Frame:
        stopped = self._stopped.is_set()
        if self.state is not None:
            remarks = [describe_load(), STOPPED] if stopped else [describe_load()]
            return draw(self.state, [] if self.state.ended else remarks, time.strftime("%H:%M:%S"))
        left = self._deadline - time.monotonic()
        if stopped or left <= 0:
            words = "No run has begun. Start one, and call monitor.watch() again."
            return Frame(f"{words} {STOPPED}" if stopped else words)
        what = "a run to begin" if self.folder is None else f"a run in {shown(self.folder)}"
        return Frame(f"Waiting for {what}, for {duration(left)} more.")


def _newest_run(since: float) -> Path | None:
    """Return the run in logs/ that began last, of those that go on or began after `since`."""
    found = []
    for path in LOGS.glob("*/config.json"):
        with contextlib.suppress(OSError):
            began = read_json(path).get("started_unix_seconds", 0)
            if began >= since or read_status(path.parent) == "running":
                found.append((path.parent.stat().st_mtime, path.parent))
    return max(found)[1] if found else None


_open: list[Monitor] = []  # at most one


def watch(run_folder: Path | str | None = None, wait_seconds: float = WAIT_SECONDS) -> Monitor:
    """Show a run and follow it until it ends, in the background. Returns at once.

    run_folder: of a run that may still have to begin; None is the newest that goes on, or the next.
    wait_seconds: to wait for it. Stops the monitor before. Raises ValueError for a file.
    """
    folder = None if run_folder is None else Path(run_folder).resolve()
    if folder and folder.is_file():
        raise ValueError(f"run_folder={run_folder}: this is a file, expected a run's folder")
    stop()
    _open.append(Monitor(folder, wait_seconds))
    return _open[0]


@atexit.register
def stop() -> None:
    """End the monitor of this kernel. Runs go on."""
    while _open:
        _open.pop().stop()
