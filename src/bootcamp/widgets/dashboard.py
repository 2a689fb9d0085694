"""The dashboard of all runs: `dashboard.show()`. Filter, sort, choose some, compare them.

    dashboard.table(strategy="ddp", sort="samples/s")     the same without widgets

It reads logs/ and the recorded runs of the course (logs/reference), which stay marked as such.
"""

import html
import time
from pathlib import Path

from bootcamp.drawing import plots
from bootcamp.drawing.style import describe_origins
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records.runs import SETTINGS, Run
from bootcamp.table import Table
from bootcamp.widgets import controls, monitor

ANY = "any"
SHOWN = 12  # rows of the list, and runs that one figure can hold
HERE, RECORDED, ELSEWHERE = "here", "recorded", "elsewhere"  # where the numbers are from
FILTERS = ("strategy", "model", "device", "ranks", "status", "numbers")
SORTS = {
    "newest first": lambda run: -run["began"],
    "samples/s": lambda run: -(run["samples/s"] or 0),
    "final loss": lambda run: float("inf") if run["final loss"] is None else run["final loss"],
    "peak memory": lambda run: run["peak MB"] or float("inf"),
    "strategy and ranks": lambda run: (run["strategy"], run["ranks"], -run["began"]),
}


def read_rows(logs: Path = LOGS, reference: Path = REFERENCE) -> tuple[list[dict], int]:
    """Return a row for every run, the newest first, and the number of folders without a record."""
    folders = [path.parent for place in (logs, reference) for path in place.glob("*/summary.json")]
    rows = [row for folder in folders if (row := _read_row(folder))]
    return sorted(rows, key=SORTS["newest first"]), len(folders) - len(rows)


def _read_row(folder: Path) -> dict | None:
    """Return the columns and filters of a run; None where its files are missing or broken."""
    try:
        run = Run(folder)
        config, summary = run.config, run.summary
        rate, seconds = summary.get("samples_per_second"), summary.get("seconds_per_step")
        peak = summary.get("peak_bytes")  # of rank 0
        return {
            "run": run.label,
            "strategy": run.strategy,
            "model": f"{config['model']} {config['size']}",
            "device": {"cuda": "GPU", "cpu": "CPU"}.get(run.device, "none (rehearsal)"),
            "ranks": run.world,
            "batch": config.get("global_batch"),
            "status": str(monitor.read_status(folder)),
            "steps": summary.get("steps", 0),
            "final loss": summary.get("final_loss"),
            "samples/s": rate["median"] if rate else None,
            "ms per step": 1e3 * seconds["median"] if seconds else None,
            "peak MB": peak / 1e6 if peak else None,
            "numbers": HERE if run.measured_here else RECORDED if run.in_reference else ELSEWHERE,
            "began": float(config["started_unix_seconds"]),
            "folder": folder,
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def select(rows: list[dict], sort: str = "newest first", **filters) -> list[dict]:
    """Return the rows that have these values of FILTERS, sorted by a key of SORTS.

    Raises ValueError for another sort, TypeError for another filter.
    """
    if sort not in SORTS:
        raise ValueError(f"{sort!r}: expected one of {', '.join(SORTS)}")
    if unknown := filters.keys() - set(FILTERS):
        raise TypeError(f"there is no filter {unknown}: expected {', '.join(FILTERS)}")
    wanted = {name: value for name, value in filters.items() if value != ANY}
    return sorted((run for run in rows if wanted.items() <= run.items()), key=SORTS[sort])


def table(logs: Path = LOGS, sort: str = "newest first", **filters) -> Table:
    """Return the runs that have these values of FILTERS."""
    known, unreadable = read_rows(logs)
    fitting = select(known, sort=sort, **filters)
    count = "1 run" if len(fitting) == 1 else f"{len(fitting) or 'No'} runs"
    count = f"The first {SHOWN} of {count}" if len(fitting) > SHOWN else count
    left = f"; {unreadable} folders hold no record of a training" if unreadable else ""
    return _tabulate(fitting[:SHOWN], f"{count}, sorted by: {sort}{left}")


def _tabulate(rows: list[dict], caption: str) -> Table:
    hidden = ("strategy", "device", "ranks")  # the run's label has them
    shown = [
        {name: value for name, value in run.items() if name not in hidden}
        | {"began": _format_time(run["began"]), "folder": run["folder"].name}
        for run in rows
    ]
    return Table(shown, caption)


def _format_time(began: float) -> str:
    """Write the time of day for a run of today, else the date too."""
    at = time.localtime(began)
    today = time.localtime()[:3] == at[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", at)


def compare_runs(chosen: list[Run], how: str) -> str:
    """Show runs side by side, as HTML, and name the settings that differ. how: a key of WAYS.

    Raises ValueError, with the reason, for runs that can't be compared so.
    """
    if len(chosen) > SHOWN:
        raise ValueError(f"{len(chosen)} runs are too many for one figure: choose {SHOWN} or fewer")
    if gone := [run.folder.name for run in chosen if not run.config]:
        raise ValueError(f"the record of {', '.join(gone)} is no longer there: leave it out")
    for setting, (why, pictures) in SAME.items():
        values = {str(run.config.get(setting)) for run in chosen}
        if len(values) > 1 and how in pictures:
            raise ValueError(f"the runs have {setting} {', '.join(sorted(values))}: {why}")
    try:
        drawn = controls.to_html(WAYS[how](*chosen))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a record among them is incomplete ({error!r}): leave it out") from None
    differing = []
    own = [flag for run in chosen for flag in run.config.get("own_flags", [])]
    for name in dict.fromkeys([*SETTINGS, *own]):
        values = [str(run.config.get(name, "-")) for run in chosen]
        if len(set(values)) > 1:
            differing.append(f"{name.replace('_', ' ')} ({', '.join(values)})")
    if differing:
        words = html.escape("; ".join(differing))
        drawn += f"<p>These runs, in this order, also differ in: {words}.</p>"
    return drawn


def _side_by_side(*chosen: Run) -> Table:
    """Put runs of any kind in a table, failed ones too."""
    return _tabulate([_read_row(run.folder) for run in chosen], " ".join(describe_origins(chosen)))


WAYS = {
    "table": _side_by_side,
    "speed": plots.throughput,
    "loss": plots.loss_curves,
    "memory": plots.memory,
    "more ranks, same batch": plots.scaling,
    "more ranks, same batch per rank": lambda *chosen: plots.scaling(*chosen, kind="weak"),
}
_PICTURES = WAYS.keys() - {"table"}
SAME = {  # setting: why it has to be the same in some of these ways
    "model": ("different models do different work", _PICTURES),
    "size": ("models of different size do different work", _PICTURES),
    "global_batch": ("at one step they have seen different samples", {"loss"}),
    "corpus_crc32": ("they were trained on different texts", {"loss"}),
}


def show(logs: Path = LOGS) -> dict:
    """Show the dashboard; return the controls by name. Moving any control reads logs/ again."""
    known, _ = read_rows(logs)
    filters = {
        name: controls.choice(name, [ANY, *sorted({run[name] for run in known})], ANY)
        for name in FILTERS
    }
    filters["sort"] = controls.choice("sort by", list(SORTS), "newest first")
    compare = controls.choice("compare by", list(WAYS), "table")
    for control in (*filters.values(), compare):
        control.layout.width = "max-content"  # so that several fit in a row
    look = {"options": _list_options(known), "rows": 8, "layout": {"width": "98%"}}
    several = "runs to compare (several: Ctrl or Shift)"
    chosen = controls.control("SelectMultiple", several, (), **look)

    def draw(chosen: tuple, compare: str, **wanted) -> str | Table:
        if chosen:
            return compare_runs([Run(folder) for folder in chosen], compare)
        return table(logs, **wanted)

    def offer_others(moved) -> None:
        if moved not in filters.values():
            return
        wanted = {name: control.value for name, control in filters.items()}
        options = _list_options(select(read_rows(logs)[0], **wanted))
        before, offered = chosen.value, [folder for _, folder in options]
        chosen.options = options
        chosen.value = [folder for folder in before if folder in offered]

    return controls.follow(draw, offer_others, **filters, chosen=chosen, compare=compare)


def _list_options(runs: list[dict]) -> list[tuple[str, str]]:
    """Return (words, folder) of the runs to choose from."""
    options = []
    for number, run in enumerate(runs, start=1):
        words = [f"{number}. {run['run']}", run["model"], f"batch {run['batch']}", run["status"]]
        words += [] if run["samples/s"] is None else [f"{run['samples/s']:,.0f} samples/s"]
        words += [] if run["numbers"] == HERE else [run["numbers"]]
        options.append((", ".join([*words, _format_time(run["began"])]), str(run["folder"])))
    return options
