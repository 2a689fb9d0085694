"""The board of all runs: `board.show()`. Filter, sort, choose some, compare them.

    board.table(strategy="ddp", sort="samples/s")     the same without widgets

It reads logs/ and the recorded runs of the course (logs/reference), which stay marked as such.
What can't be compared is not: the board says why. A run of this board is
`runs.load("logs/<folder>")`.
"""

import contextlib
import html
import os
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp.drawing import style
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records import status as vitals
from bootcamp.records.runs import SETTINGS, Run, names
from bootcamp.table import Table
from bootcamp.widgets import controls as widget

ANY = "any"
SHOWN = 12  # rows of the list
OFFERED = 300  # runs to choose from
MOST = 12  # runs that one picture can hold
SINCE = {"any time": None, "the last hour": 3600, "the last day": 86400, "the last week": 604800}
HERE, RECORDED, ELSEWHERE = "here", "recorded", "elsewhere"  # where the numbers are from


@dataclass(frozen=True)
class Entry:
    """One run in the list. loss: the final one; rate: samples/s, a median; peak_bytes: of rank 0.

    What a run did not come to is None. where: HERE, RECORDED (a run of the course), or ELSEWHERE,
    on another machine.
    """

    folder: Path
    label: str
    strategy: str
    model: str
    device: str
    ranks: int
    batch: int | None
    status: str
    began: float
    steps: int
    loss: float | None
    rate: float | None
    step_seconds: float | None
    peak_bytes: int | None
    where: str


SORTS = {
    "newest first": lambda entry: -entry.began,
    "samples/s": lambda entry: -(entry.rate or 0),
    "final loss": lambda entry: float("inf") if entry.loss is None else entry.loss,
    "peak memory": lambda entry: entry.peak_bytes or float("inf"),
    "strategy and ranks": lambda entry: (entry.strategy, entry.ranks, -entry.began),
}


# Reading


_cache: dict[Path, tuple[tuple, Entry | None]] = {}


def entries(logs: Path = LOGS, reference: Path = REFERENCE) -> tuple[list[Entry], int]:
    """(every run, how many folders hold none that can be read), newest first.

    A folder is read again only when its config or summary has changed. A folder without a
    config.json (a command, a run that was refused) counts as one that holds none.
    """
    found = [_cached(folder) for folder in [*_folders(logs), *_folders(reference)]]
    known = [_with_life(entry) for entry in found if entry]
    return sorted(known, key=lambda entry: -entry.began), len(found) - len(known)


def _folders(place: Path) -> list[Path]:
    """The folders in a place that have a summary."""
    with contextlib.suppress(OSError), os.scandir(place) as found:
        paths = [entry.path for entry in found]
        return [Path(path) for path in paths if os.path.exists(f"{path}/summary.json")]
    return []


def _cached(folder: Path) -> Entry | None:
    mark = tuple(_mark(folder / name) for name in ("summary.json", "config.json"))
    known = _cache.get(folder)
    if known is None or known[0] != mark:
        known = _cache[folder] = mark, _read(folder)
    return known[1]


def _mark(path: Path) -> tuple | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _read(folder: Path) -> Entry | None:
    """The run in this folder; None where its files are missing, or are not what they should be."""
    try:
        run = Run(folder)
        config, summary = run.config, run.summary
        if not config:
            return None
        rate, seconds = (summary.get(name) for name in ("samples_per_second", "seconds_per_step"))
        return Entry(
            folder=folder,
            label=run.label,
            strategy=run.strategy,
            model=f"{config['model']} {config['size']}",
            device=_device(run),
            ranks=run.world,
            batch=config.get("global_batch"),
            status=str(summary["status"]),
            began=float(config["started_unix_seconds"]),
            steps=summary.get("steps", 0),
            loss=summary.get("final_loss"),
            rate=rate["median"] if rate else None,
            step_seconds=seconds["median"] if seconds else None,
            peak_bytes=summary.get("peak_bytes"),
            where=_where(run),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _device(run: Run) -> str:
    return {"cuda": "GPU", "cpu": "CPU"}.get(run.device, "none (rehearsal)")


def _where(run: Run) -> str:
    if run.measured_here:
        return HERE
    return RECORDED if REFERENCE in run.folder.resolve().parents else ELSEWHERE


def _with_life(entry: Entry) -> Entry:
    """A record that says running without anybody who runs is shown as what it is."""
    if entry.status != "running" or vitals.is_going(entry.folder):
        return entry
    return Entry(**{**vars(entry), "status": "lost"})


# Choosing


def found(
    known: list[Entry],
    strategy: str = ANY,
    model: str = ANY,
    device: str = ANY,
    ranks: int | str = ANY,
    status: str = ANY,
    since: str = "any time",
    numbers: str = ANY,
    sort: str = "newest first",
) -> list[Entry]:
    """The entries that fit all filters, sorted. since: a key of SINCE; sort: a key of SORTS.

    numbers: HERE, RECORDED or ELSEWHERE. Raises ValueError for another word in since or sort.
    """
    for word, words in ((since, SINCE), (sort, SORTS)):
        if word not in words:
            raise ValueError(f"{word!r}: expected one of {', '.join(words)}")
    wanted = {"strategy": strategy, "model": model, "device": device, "ranks": ranks}
    wanted |= {"status": status, "where": numbers}
    oldest = time.time() - SINCE[since] if SINCE[since] else 0
    fitting = [
        entry
        for entry in known
        if entry.began >= oldest
        and all(value in (ANY, getattr(entry, name)) for name, value in wanted.items())
    ]
    return sorted(fitting, key=SORTS[sort])


def table(logs: Path = LOGS, **filters) -> Table:
    """The runs that fit these filters (see `found`) as a table."""
    known, unreadable = entries(logs)
    return _list(found(known, **filters), filters.get("sort", "newest first"), unreadable)


def _list(fitting: list[Entry], sort: str, unreadable: int) -> Table:
    rows = [
        {
            "run": entry.label,
            "model": entry.model,
            "batch": entry.batch,
            "status": entry.status,
            "steps": entry.steps,
            "final loss": entry.loss,
            "samples/s": entry.rate,
            "peak MB": entry.peak_bytes / 1e6 if entry.peak_bytes else None,
            "numbers": entry.where,
            "began": _when(entry.began),
            "folder": entry.folder.name,
        }
        for entry in fitting[:SHOWN]
    ]
    first = f"The first {SHOWN} of {len(fitting)} runs" if len(fitting) > SHOWN else _runs(fitting)
    left = f"; {unreadable} folders hold no record of a training" if unreadable else ""
    return Table(rows, f"{first}, sorted by: {sort}{left}")


def _runs(fitting: list[Entry]) -> str:
    return "1 run" if len(fitting) == 1 else f"{len(fitting) or 'No'} runs"


def _when(began: float) -> str:
    """The time of day for a run of today, else the date too."""
    at = time.localtime(began)
    today = time.localtime()[:3] == at[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", at)


# Comparing


def compared(chosen: list[Run], how: str) -> str:
    """These runs side by side, as HTML. how: a key of WAYS.

    Raises ValueError, with the reason, for runs that can't be compared so.
    """
    if len(chosen) > MOST:
        raise ValueError(f"{len(chosen)} runs are too many for one picture: choose {MOST} or fewer")
    if gone := [run.folder.name for run in chosen if not run.config]:
        raise ValueError(f"the record of {', '.join(gone)} is no longer there: leave it out")
    if how != "table":
        _check_same(chosen, "model", "different models do different work")
        _check_same(chosen, "size", "models of different size do different work")
    try:
        return WAYS[how](chosen) + _differing(chosen)
    except ValueError as why:
        raise ValueError(str(why).rstrip(".")) from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a record among them is not whole ({error!r}): leave it out") from None


def _check_same(chosen: list[Run], setting: str, why: str) -> None:
    values = {str(run.config.get(setting)) for run in chosen}
    if len(values) > 1:
        raise ValueError(f"the runs have {setting} {', '.join(sorted(values))}: {why}")


def _compared_table(chosen: list[Run]) -> str:
    rows = []
    for run, name in zip(chosen, names(chosen), strict=True):
        entry = _read(run.folder)
        row = {"run": name, "model": entry.model, "final loss": entry.loss}
        row |= {"samples/s": entry.rate, "ms per step": _times(entry.step_seconds, 1e3)}
        row |= {"peak MB of rank 0": _times(entry.peak_bytes, 1e-6)}
        rows.append(row | {"numbers from": "measured here" if run.measured_here else run.origin})
    return Table(rows, "Medians of the steps after warm-up")._repr_html_()


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _losses(chosen: list[Run]) -> str:
    from bootcamp.drawing import plots

    _check_same(chosen, "global_batch", "at one step they have seen different numbers of samples")
    _check_same(chosen, "corpus_crc32", "they were trained on different texts")
    return style.image(plots.loss_curves(*chosen))


def _drawn(name: str, **how):
    """A function that draws runs with a function of plots.py."""

    def draw(chosen: list[Run]) -> str:
        from bootcamp.drawing import plots

        return style.image(getattr(plots, name)(*chosen, **how))

    return draw


WAYS = {
    "table": _compared_table,
    "speed": _drawn("throughput"),
    "loss": _losses,
    "memory": _drawn("memory"),
    "more ranks, same batch": _drawn("scaling", kind="strong"),
    "more ranks, same batch per rank": _drawn("scaling", kind="weak"),
}


def _differing(chosen: list[Run]) -> str:
    """A sentence on the settings in which the runs differ, so that nobody overlooks one."""
    own = [flag for run in chosen for flag in run.config.get("own_flags", [])]
    settings = dict.fromkeys([*SETTINGS, *own])
    words = []
    for name in settings:
        values = [str(run.config.get(name, "-")) for run in chosen]
        if len(set(values)) > 1:
            words.append(f"{name.replace('_', ' ')} ({', '.join(values)})")
    if not words:
        return ""
    return f"<p>These runs, in this order, also differ in: {html.escape('; '.join(words))}.</p>"


# Showing


def draw(known: list[Entry], unreadable: int, chosen: tuple, compare: str, **filters) -> str:
    """The chosen folders compared, or the list of runs where none is chosen, as HTML."""
    if chosen:
        return compared([Run(folder) for folder in chosen], compare)
    return _list(found(known, **filters), filters["sort"], unreadable)._repr_html_()


def show(logs: Path = LOGS) -> dict:
    """Show the board; returns the controls by name.

    Moving any control reads what is new in logs/.
    """
    known, _ = entries(logs)

    def react(moved: str, controls: dict) -> None:
        if moved in ("chosen", "compare"):
            return
        now, _ = entries(logs)
        chosen = controls["chosen"].value
        filters = {name: controls[name].value for name in FILTERS}
        options = _offered(found(now, **filters))
        controls["chosen"].options = options
        offered = [folder for _, folder in options]
        controls["chosen"].value = tuple(folder for folder in chosen if folder in offered)

    return widget.follow(
        lambda **values: draw(*entries(logs), **values),
        react,
        **{
            name: _filter(name, [getattr(entry, _of(name)) for entry in known])
            for name in ("strategy", "model", "device", "ranks", "status", "numbers")
        },
        since=_compact(widget.choice("since", list(SINCE))),
        sort=_compact(widget.choice("sort by", list(SORTS))),
        chosen=_chooser(_offered(known)),
        compare=_compact(widget.choice("compare by", list(WAYS))),
    )


FILTERS = ("strategy", "model", "device", "ranks", "status", "numbers", "since", "sort")


def _of(name: str) -> str:
    return "where" if name == "numbers" else name


def _filter(name: str, values: list):
    """A drop-down over the values that there are."""
    return _compact(widget.choice(name, [ANY, *sorted(set(values))]))


def _compact(control):
    """As narrow as its words, so that several stand in a row."""
    control.layout.width = "max-content"
    return control


def _offered(fitting: list[Entry]) -> list[tuple[str, str]]:
    """(words, folder) of the runs to choose from."""
    options = []
    for number, entry in enumerate(fitting[:OFFERED], start=1):
        rate = "" if entry.rate is None else f", {entry.rate:,.0f} samples/s"
        where = "" if entry.where == HERE else f", {entry.where}"
        words = f"{number}. {entry.label}, {entry.model}, batch {entry.batch}, {entry.status}"
        options.append((f"{words}{rate}{where}, {_when(entry.began)}", str(entry.folder)))
    return options


def _chooser(options: list[tuple[str, str]]):
    """A list of which several can be chosen: with Ctrl and a click, or Shift and the arrow keys."""
    import ipywidgets

    return ipywidgets.SelectMultiple(
        options=options,
        rows=8,
        description="runs to compare (several: Ctrl or Shift)",
        style={"description_width": "initial"},
        layout={"width": "98%"},
    )
