"""A running job as it looks from its record: `monitor.watch()`, then start a run.

    monitor.watch()                         the newest run that is going, or the next that begins
    launch("ddp", ranks=2, steps=500)       in the same cell or a later one, or in a terminal
    monitor.watch("logs/20261121-...")      this run

Only the run's files are read (logs/README.md), so any run will do. A thread reads them, so the
picture also moves while a cell is busy in `launch`. It is HTML and SVG, not drawn by matplotlib: a
picture each half second must not take the cores that the ranks compute with.
"""

import atexit
import contextlib
import html
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import psutil

from bootcamp import machine
from bootcamp.files import read_json
from bootcamp.launcher.hang import process_of
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
    notes: list[str]

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


@dataclass(repr=False)
class Frame:
    """A picture of the monitor: HTML in a notebook, lines elsewhere."""

    text: str
    content: str = ""

    def _repr_html_(self) -> str:
        return self.content or f"<p>{html.escape(self.text)}</p>"

    def __repr__(self) -> str:
        return self.text


def draw(state: State, remark: str = "", at: str = "") -> Frame:
    """The picture of a state. remark: a sentence to add. at: the time of day to be named."""
    head = _headline(state)
    ranks = Table([_rank_row(rank, state) for rank in state.ranks])
    notes = [*state.notes, *([remark] if remark else [])]
    where = shown(state.folder) + (f", as of {at}" if at else "")
    bar = f'<progress max="{state.steps}" value="{state.steps_done}" style="width:100%"></progress>'
    content = (
        f'<div role="region" aria-label="Monitor: {html.escape(head)}">'
        f"<p><b>{html.escape(head)}</b><br><code>{html.escape(where)}</code></p>"
        f"{bar if state.steps else ''}"
        '<div style="display:flex;flex-wrap:wrap;gap:8px 24px">'
        f"{_curve('loss', '', state.losses)}{_curve('speed', ' samples/s', state.rates, 0)}</div>"
        f"{ranks._repr_html_()}"
        + "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        + "</div>"
    )
    return Frame("\n".join([head, str(ranks), *notes]), content)


def _headline(state: State) -> str:
    of = f" of {state.steps}" if state.steps else ""
    done = f"{state.steps_done}{of} steps in {duration(state.seconds)}"
    if state.ended:
        return f"{state.label}: {WORDS.get(state.status, state.status)}, {done}"
    if not state.steps_done:
        return f"{state.label}: starting, {duration(state.seconds)} so far"
    left = (state.steps or 0) - state.steps_done
    soon = f", about {duration(left * state.step_seconds)} left" if left > 0 else ""
    return f"{state.label}: running, {done}{soon}"


def _rank_row(rank: Rank, state: State) -> dict:
    sign = "none yet" if rank.seconds_ago is None else f"{duration(rank.seconds_ago)} ago"
    if state.ended and rank.peak_bytes is not None:
        sign = "at its end"
    elif rank.here is False:
        sign += ", process gone"
    return {
        "rank": rank.rank,
        "last sign of life": sign,
        "steps done": rank.steps_done,
        "memory now": size(None if state.ended else rank.memory_bytes),
        "peak memory": size(rank.peak_bytes),
    }


def _curve(name: str, unit: str, points: list[tuple], floor: float | None = None) -> str:
    """A curve of (step, value) as SVG, with its values as text; gaps where there is no number.

    floor: where the axis begins, instead of at the lowest value.
    """
    values = [value for _, value in points if value is not None]
    if not values:
        return f'<p style="width:{WIDTH}px">{name}: nothing yet</p>'
    low, high = min(values), max(values)
    bottom, first, last = low if floor is None else floor, points[0][0], points[-1][0]
    words = f"{name} at the last step: {three_digits(values[-1])}{unit}"
    words += f"; from {three_digits(low)} to {three_digits(high)} so far"
    path, pen = "", "M"
    for step, value in points:
        if value is not None:
            x = 3 + (WIDTH - 6) * (step - first) / (last - first or 1)
            y = 5 + (HEIGHT - 10) * (high - value) / (high - bottom or 1)
            path += f"{pen}{x:.1f} {y:.1f}" + ("h0.1" if pen == "M" else "")  # one is a dot
        pen = "M" if value is None else "L"
    return (
        f'<figure style="margin:0;width:{WIDTH}px;max-width:100%">'
        f"<figcaption>{html.escape(words)}</figcaption>"
        f'<svg role="img" aria-label="{html.escape(words)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="2" stroke-linecap="round"/>'
        f"</svg><div>steps {first} to {last}</div></figure>"
    )


def machine_use() -> str:
    """How busy the machine is: its CPU and memory, and each GPU."""
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


class Monitor:
    """A picture that follows a run. `folder` is None until there is one; `state` is the last.

    Where there is no notebook, each picture is printed.
    """

    def __init__(self, folder: Path | None, wait_seconds: float):
        from IPython.display import display

        self.folder, self.state, self._reader = folder, None, None
        self._began = time.time()
        self._deadline = time.monotonic() + wait_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=THREAD, daemon=True)
        more = self._look()
        self._picture = display(self._frame(), display_id=True)
        if more:
            self._thread.start()
        else:
            self._over.set()

    def stop(self) -> None:
        """End the thread; the last picture stays. The run is not touched."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the monitor has ended; whether it has."""
        return self._over.wait(seconds)

    @property
    def going(self) -> bool:
        return not self._over.is_set()

    def _ipython_display_(self) -> None:
        """Show nothing more as the value of the cell: the picture is there already."""

    def _follow(self) -> None:
        more = True
        try:
            while more and not self._over.wait(LOOK_SECONDS):
                more = self._look()
                self._show(self._frame())
            if more:
                self._show(self._frame("This monitor was stopped; the run was not."))
        except Exception as error:  # raised in a thread, it would not be seen
            with contextlib.suppress(Exception):
                self._show(Frame(f"The monitor failed: {error!r}."))
        finally:
            self._over.set()

    def _look(self) -> bool:
        """Take in what is new; whether there may be more."""
        if self._reader is None:
            self.folder = self.folder or newest(self._began)
            if self.folder is None or not (self.folder / "summary.json").exists():
                return time.monotonic() < self._deadline
            self._reader = Reader(self.folder)
        self.state = self._reader.look()
        return not self.state.ended

    def _frame(self, remark: str = "") -> Frame:
        if self.state is not None:
            use = "" if self.state.ended else machine_use()
            return draw(self.state, f"{use} {remark}".strip(), time.strftime("%H:%M:%S"))
        left = self._deadline - time.monotonic()
        if remark or left <= 0:
            return Frame(f"No run has begun. Start one, and call monitor.watch() again. {remark}")
        what = "a run to begin" if self.folder is None else f"a run in {shown(self.folder)}"
        return Frame(f"Waiting for {what}, for {duration(left)} more.")

    def _show(self, frame: Frame) -> None:
        if self._picture is None:
            print(frame, flush=True)
        else:
            self._picture.update(frame)


def newest(since: float) -> Path | None:
    """The run in logs/ that began last, of those that are going or began after `since`."""
    found = []
    for path in LOGS.glob("*/config.json"):
        with contextlib.suppress(OSError):
            began = read_json(path).get("started_unix_seconds", 0)
            if began >= since or is_going(path.parent):
                found.append((path.parent.stat().st_mtime, path.parent))
    return max(found)[1] if found else None


_open: list[Monitor] = []  # at most one


def watch(run_folder: Path | str | None = None, wait_seconds: float = WAIT_SECONDS) -> Monitor:
    """Show a run and follow it until it ends, in the background. Returns at once.

    run_folder: of the run, which may still have to begin; None is the newest that is going, or the
    next that begins. wait_seconds: how long to wait for it to begin.

    A run that has ended is shown as it ended. The monitor before this one stops. Raises ValueError
    for what is not a folder.
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
