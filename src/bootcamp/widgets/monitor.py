"""A running job as it looks from its record: `monitor.watch()`, then start a run.

    monitor.watch()                         the newest run that is going, or the next that begins
    launch("ddp", ranks=2, steps=500)       in the same cell or a later one, or in a terminal
    monitor.watch("logs/20261121-...")      this run

Only the run's files are read (logs/README.md), so it does not matter who started the run: a cell,
another kernel, torchrun in a terminal. A thread looks at them, so the picture also moves while a
cell is busy in `launch`; it ends with the run. Call `watch` again at any time, also in a new
kernel: everything is in the files. The run does not notice: interrupting the cell ends it as ever,
and ending the monitor (`monitor.stop()`) does not.

Drawn as HTML and lines in it, not by matplotlib: a picture each second must not take the cores that
the ranks compute with.
"""

import atexit
import contextlib
import html
import os
import threading
import time
from pathlib import Path

from bootcamp import machine
from bootcamp.files import read_json
from bootcamp.paths import LOGS, ROOT
from bootcamp.records import summary
from bootcamp.records.status import Rank, Reader, State, is_going

DRAW_SECONDS = 1.0
LOOK_SECONDS = 0.2
WAIT_SECONDS = 120.0  # for a run to begin: a script may load torch for long
THREAD = "bootcamp-monitor"


# What the machine does meanwhile


class Use:
    """How busy the machine is, by nvitop, a sentence each time; GPUs are asked for only once."""

    def __init__(self):
        self._host = self._devices = None
        with contextlib.suppress(Exception):  # the monitor does without it
            from nvitop import host

            host.cpu_percent()  # the first answer means nothing
            self._host = host
        if machine.gpu_names():  # without one nvitop writes an error in capitals
            with contextlib.suppress(Exception):
                from nvitop import Device

                self._devices = Device.all()

    def sentence(self) -> str:
        """Use of the CPU and of the memory, and of each GPU; empty without nvitop."""
        with contextlib.suppress(Exception):
            return " ".join(filter(None, [self._of_host(), *self._of_gpus()]))
        return ""

    def _of_host(self) -> str:
        if self._host is None:
            return ""
        memory = self._host.virtual_memory()
        gpus = "" if self._devices else " No GPU here."
        return (
            f"Whole machine: CPU {self._host.cpu_percent():.0f} %, memory "
            f"{memory.used / 1e9:.1f} of {memory.total / 1e9:.1f} GB.{gpus}"
        )

    def _of_gpus(self) -> list[str]:
        return [
            f"GPU {device.index}: {device.gpu_utilization()} %, memory "
            f"{device.memory_used() / 1e9:.1f} of {device.memory_total() / 1e9:.1f} GB."
            for device in self._devices or ()
        ]


# The picture


class Frame:
    """A picture of the monitor: HTML in a notebook, lines elsewhere."""

    def __init__(self, content: str, text: str):
        self.content, self.text = content, text

    def _repr_html_(self) -> str:
        return self.content

    def __repr__(self) -> str:
        return self.text


def draw(state: State, use: str = "", at: str = "") -> Frame:
    """The picture of a state. use: a sentence on the machine. at: the time of day to be named."""
    head = headline(state)
    notes = [*state.notes, *([use] if use else [])]
    where = _short(state.folder) + (f", as of {at}" if at else "")
    content = (
        f'<div role="region" aria-label="Monitor: {html.escape(head)}">'
        f"<p><b>{html.escape(head)}</b><br><code>{html.escape(where)}</code></p>"
        f"{_bar(state)}"
        '<div style="display:flex;flex-wrap:wrap;gap:8px 24px">'
        f"{_chart('loss', '', state.losses)}"
        f"{_chart('speed', ' samples/s', state.rates, floor=0)}</div>"
        f"{_ranks_table(state)}"
        + "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        + "</div>"
    )
    return Frame(content, "\n".join([head, *map(_rank_line, state.ranks), *notes]))


WORDS = {
    "ok": "ended well",
    "failed": "failed",
    "oom": "failed, out of memory",
    "interrupted": "interrupted",
    "skipped": "skipped",
    "lost": "lost",
}


def headline(state: State) -> str:
    """The run, its status and how far it is, in a line."""
    of = f" of {state.steps}" if state.steps else ""
    done = f"{state.steps_done}{of} steps in {_duration(state.seconds)}"
    if state.ended:
        return f"{state.label}: {WORDS.get(state.status, state.status)}, {done}"
    if not state.steps_done:
        return f"{state.label}: starting, {_duration(state.seconds)} so far"
    left = _seconds_left(state)
    return f"{state.label}: running, {done}" + (f", about {_duration(left)} left" if left else "")


def _seconds_left(state: State) -> float | None:
    """By the time of the last steps; None where it is not known."""
    if not state.steps or not state.step_seconds:
        return None
    return (state.steps - state.steps_done) * state.step_seconds


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _short(folder: Path) -> str:
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else folder.name


def _bar(state: State) -> str:
    if not state.steps:
        return ""
    return (
        f'<progress max="{state.steps}" value="{state.steps_done}" aria-label="steps" '
        'style="width:100%;max-width:744px"></progress>'
    )


WIDTH, HEIGHT, LEFT, BOTTOM = 360, 140, 52, 20
LINE = "#1A85C8"  # at least 3:1 against white and against JupyterLab's dark background


def _chart(name: str, unit: str, points: list[tuple], floor: float | None = None) -> str:
    """A curve over the steps, as an SVG with a text; its axis begins at its lowest value.

    points: (step, value), None for no number. floor: where the axis begins instead.
    """
    known = [(step, value) for step, value in points if value is not None]
    if not known:
        return f'<p style="width:{WIDTH}px">{name}: nothing yet</p>'
    values = [value for _, value in known]
    low, high = min(values), max(values)
    says = f"{name} at the last step: {_number(known[-1][1])}{unit}"
    says_all = f"{says}; from {_number(low)} to {_number(high)} so far"
    bottom = low if floor is None else floor
    x = _scale(points[0][0], points[-1][0], LEFT, WIDTH - 6)
    y = _scale(high, bottom, 8, HEIGHT - 24)
    ends = "".join(
        f'<text x="{LEFT - 5}" y="{y(value) + 4:.0f}" text-anchor="end">{_number(value)}</text>'
        f'<path d="M{LEFT} {y(value):.1f}H{WIDTH}" stroke="currentColor" stroke-opacity="0.25"/>'
        for value in dict.fromkeys((bottom, high))
    )
    steps = "".join(
        f'<text x="{x(step):.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{words}</text>'
        for step, words, anchor in (
            (points[0][0], f"step {points[0][0]}", "start"),
            (points[-1][0], f"{points[-1][0]}", "end"),
        )
    )
    return (
        f'<figure style="margin:0;width:{WIDTH}px;max-width:100%">'
        f"<figcaption>{html.escape(says)}</figcaption>"
        f'<svg role="img" aria-label="{html.escape(says_all)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'style="display:block;width:100%;height:auto" fill="currentColor" font-size="12">'
        f'{ends}{steps}<path d="{_path(points, x, y)}" fill="none" stroke="{LINE}" '
        'stroke-width="2" stroke-linecap="round" stroke-linejoin="round"/></svg></figure>'
    )


def _scale(begin: float, end: float, first: float, last: float):
    """A function from begin..end to first..last."""
    span = (end - begin) or 1
    return lambda value: first + (value - begin) / span * (last - first)


def _path(points, x, y) -> str:
    """The curve as SVG path data, with a gap where there is no value."""
    parts, pen = [], "M"
    for step, value in points:
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{x(step):.1f} {y(value):.1f}")
        pen = "L"
    return "".join(parts) + ("h0.1" if len(parts) == 1 else "")  # one point is a dot


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ranks_table(state: State) -> str:
    heads = ("rank", "last sign of life", "steps done", "memory now", "peak memory")
    cell = "text-align:left;padding:2px 12px 2px 0"
    head = "".join(f'<th scope="col" style="{cell}">{name}</th>' for name in heads)
    rows = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{text}</td>' for text in _rank_cells(rank, state))
        for rank in state.ranks
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _rank_cells(rank: Rank, state: State) -> tuple[str, ...]:
    done = "-" if rank.steps_done is None else str(rank.steps_done)
    sign = "at its end" if state.ended and rank.peak_bytes is not None else _sign(rank)
    now = None if state.ended else rank.memory_bytes
    return (str(rank.rank), sign, done, _size(now), _size(rank.peak_bytes))


def _sign(rank: Rank) -> str:
    if rank.seconds_ago is None:
        return "none yet"
    gone = ", process gone" if rank.here is False else ""
    return f"{_duration(rank.seconds_ago)} ago{gone}"


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.0f} MB"


def _rank_line(rank: Rank) -> str:
    return f"rank {rank.rank}: {_sign(rank)}, {rank.steps_done or 0} steps done"


# The thread that looks


class Monitor:
    """A picture that follows a run. `folder` is None until there is one; `state` is the last."""

    def __init__(self, folder: Path | None, wait_seconds: float):
        self.folder, self.state = folder, None
        self._given = folder
        self._known = _Known() if folder is None else None
        self._deadline = time.monotonic() + wait_seconds
        self._over = threading.Event()
        self._use = None
        self._drawn = 0.0
        self._thread = threading.Thread(target=self._follow, name=THREAD, daemon=True)

    def open(self) -> None:
        """Show the first picture, and go on in the background unless the run has ended."""
        from IPython.display import display

        more = self._look()
        self._picture = display(self._frame(), display_id=True) or _Lines()
        if more:
            self._thread.start()
        else:
            self._over.set()

    def stop(self) -> None:
        """Look no more; the last picture stays. The run is not touched."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the monitor has ended; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def going(self) -> bool:
        return not self._over.is_set()

    def _ipython_display_(self) -> None:
        """The picture is there already: nothing more as the value of the cell."""

    def _follow(self) -> None:
        more = True
        try:
            while more and not self._over.wait(LOOK_SECONDS):
                if self._is_due():
                    more = self._look()
                    self._update()
            if more:
                self._update(" This monitor was stopped; the run was not.")
        except Exception as error:  # nobody would see it in a thread
            with contextlib.suppress(Exception):
                self._picture.update(_sentence(f"The monitor failed: {error!r}."))
        finally:
            self._over.set()

    def _is_due(self) -> bool:
        """Each second, and at once when the run begins or ends."""
        if time.monotonic() - self._drawn >= DRAW_SECONDS:
            return True
        if self.state is None:
            return self._found()
        return summary.read(self.folder)["status"] != "running"

    def _update(self, remark: str = "") -> None:
        self._drawn = time.monotonic()
        self._picture.update(self._frame(remark))

    def _look(self) -> bool:
        """Take in what is new; whether there may be more."""
        if self.state is None and not self._found():
            return time.monotonic() < self._deadline
        self.state = self._reader.look()
        return not self.state.ended

    def _found(self) -> bool:
        """Whether there is a run to look at."""
        if self._known:
            self.folder = self._known.newest()
        if self.folder is None or not (self.folder / "summary.json").exists():
            return False
        self._reader, self._known = Reader(self.folder), None
        return True

    def _frame(self, remark: str = "") -> Frame:
        if self.state is not None:
            if self._use is None and not self.state.ended:
                self._use = Use()
            use = "" if self.state.ended else self._use.sentence()
            return draw(self.state, f"{use}{remark}".strip(), time.strftime("%H:%M:%S"))
        left = self._deadline - time.monotonic()
        if remark or left <= 0:
            return _sentence(
                f"No run has begun. Start one, and call monitor.watch() again.{remark}"
            )
        what = "a run to begin" if self._given is None else f"a run in {_short(self._given)}"
        return _sentence(f"Waiting for {what}, for {_duration(left)} more.")


class _Lines:
    """The picture where there is no notebook: a line each time."""

    def update(self, frame: Frame) -> None:
        print(frame.text.partition("\n")[0], flush=True)


def _sentence(text: str) -> Frame:
    return Frame(f"<p>{html.escape(text)}</p>", text)


class _Known:
    """The run folders of logs/, to find one that is going, or that has come since the beginning."""

    def __init__(self):
        self._began = time.time()
        self._looked_at: dict[str, float] = {}

    def newest(self) -> Path | None:
        """The run that began last of those that are going or began after this object; or None.

        A run begins with its config.json. A folder is looked at again only when it has changed.
        """
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(LOGS):
                with contextlib.suppress(OSError):
                    changed, path = entry.stat().st_mtime, Path(entry.path)
                    if self._looked_at.get(entry.name) == changed:
                        continue
                    if self._fits(path, changed):
                        found.append((changed, path))
                    else:
                        self._looked_at[entry.name] = changed
        return max(found)[1] if found else None

    def _fits(self, path: Path, changed: float) -> bool:
        if not (path / "config.json").exists():
            return False
        if is_going(path):
            return True
        if changed < self._began:
            return False
        return read_json(path / "config.json").get("started_unix_seconds", 0) >= self._began


_open: list[Monitor] = []


def watch(run_folder: Path | str | None = None, wait_seconds: float = WAIT_SECONDS) -> Monitor:
    """Show a run and follow it until it ends, in the background. Returns at once.

    run_folder: of the run, which may still have to begin; None is the newest that is going, or the
    next that begins. wait_seconds: how long to wait for it to begin.

    A run that has ended is shown as it ended. Another monitor of this kernel that shows the same
    run, or waits for one, stops: the last call has the picture. Raises ValueError for what is not
    a folder.
    """
    folder = None if run_folder is None else Path(run_folder).resolve()
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"run_folder={run_folder}: this is a file, expected a run's folder")
    for other in list(_open):
        if other.state is None or other.folder == folder:
            other.stop()
    opened = Monitor(folder, wait_seconds)
    opened.open()
    for other in list(_open):
        if not other.going or other.folder == opened.folder:
            other.stop()
            _open.remove(other)
    if opened.going:
        _open.append(opened)
    return opened


@atexit.register
def stop() -> None:
    """End all monitors of this kernel. Runs go on."""
    while _open:
        _open.pop().stop()
