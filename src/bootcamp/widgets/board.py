"""The board of all runs: `board.show()`. Filter, sort, choose some, compare them.

    board.table(strategy="ddp", sort="samples/s")     the same without widgets

It reads logs/ and the recorded runs of the course (logs/reference), which stay marked as such.
"""

import html
import time
from pathlib import Path

from bootcamp.drawing import plots
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records.runs import SETTINGS, Run, names
from bootcamp.table import Table
from bootcamp.widgets import controls, monitor

ANY = "any"
SHOWN = 12  # rows of the list
OFFERED = 300  # runs to choose from
MOST = 12  # runs that one figure can hold
HERE, RECORDED, ELSEWHERE = "here", "recorded", "elsewhere"  # where the numbers are from
FILTERS = ("strategy", "model", "device", "ranks", "status", "numbers")
SORTS = {
    "newest first": lambda run: -run["began"],
    "samples/s": lambda run: -(run["samples/s"] or 0),
    "final loss": lambda run: float("inf") if run["final loss"] is None else run["final loss"],
    "peak memory": lambda run: run["peak MB"] or float("inf"),
    "strategy and ranks": lambda run: (run["strategy"], run["ranks"], -run["began"]),
}


def entries(logs: Path = LOGS, reference: Path = REFERENCE) -> tuple[list[dict], int]:
    """(a row for every run, how many folders hold none that can be read), newest first.

    A folder without a config.json (a command, a run that was refused) counts as one without a run.
    """
    folders = [path.parent for place in (logs, reference) for path in place.glob("*/summary.json")]
    rows = [row for folder in folders if (row := _row(folder))]
    return sorted(rows, key=SORTS["newest first"]), len(folders) - len(rows)


def _row(folder: Path) -> dict | None:
    """What the list and its filters need of a run; None where its files are missing or broken.

    Peak memory is rank 0's. What a run did not record is None.
    """
    try:
        run = Run(folder)
        config, summary = run.config, run.summary
        rate, peak = summary.get("samples_per_second"), summary.get("peak_bytes")
        lost = run.status == "running" and not monitor.is_going(folder)
        return {
            "run": run.label,
            "strategy": run.strategy,
            "model": f"{config['model']} {config['size']}",
            "device": {"cuda": "GPU", "cpu": "CPU"}.get(run.device, "none (rehearsal)"),
            "ranks": run.world,
            "batch": config.get("global_batch"),
            "status": "lost" if lost else str(run.status),
            "steps": summary.get("steps", 0),
            "final loss": summary.get("final_loss"),
            "samples/s": rate["median"] if rate else None,
            "peak MB": peak / 1e6 if peak else None,
            "numbers": HERE if run.measured_here else RECORDED if run.in_reference else ELSEWHERE,
            "began": float(config["started_unix_seconds"]),
            "folder": folder,
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def found(known: list[dict], sort: str = "newest first", **filters) -> list[dict]:
    """The rows that have these values of FILTERS, sorted by a key of SORTS.

    Raises ValueError for another sort, TypeError for another filter.
    """
    if sort not in SORTS:
        raise ValueError(f"{sort!r}: expected one of {', '.join(SORTS)}")
    if unknown := filters.keys() - set(FILTERS):
        raise TypeError(f"there is no filter {unknown}: expected {', '.join(FILTERS)}")
    wanted = {name: value for name, value in filters.items() if value != ANY}
    return sorted((run for run in known if wanted.items() <= run.items()), key=SORTS[sort])


def table(logs: Path = LOGS, sort: str = "newest first", **filters) -> Table:
    """The runs that have these values of FILTERS."""
    known, unreadable = entries(logs)
    fitting = found(known, sort=sort, **filters)
    hidden = ("strategy", "device", "ranks")  # they are in the run's label
    rows = [
        {name: value for name, value in run.items() if name not in hidden}
        | {"began": _when(run["began"]), "folder": run["folder"].name}
        for run in fitting[:SHOWN]
    ]
    count = "1 run" if len(fitting) == 1 else f"{len(fitting) or 'No'} runs"
    count = f"The first {SHOWN} of {count}" if len(fitting) > SHOWN else count
    left = f"; {unreadable} folders hold no record of a training" if unreadable else ""
    return Table(rows, f"{count}, sorted by: {sort}{left}")


def _when(began: float) -> str:
    """The time of day for a run of today, else the date too."""
    at = time.localtime(began)
    today = time.localtime()[:3] == at[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", at)


def compared(chosen: list[Run], how: str) -> str:
    """These runs side by side, as HTML. how: a key of WAYS.

    Raises ValueError, with the reason, for runs that can't be compared so.
    """
    if len(chosen) > MOST:
        raise ValueError(f"{len(chosen)} runs are too many for one figure: choose {MOST} or fewer")
    if gone := [run.folder.name for run in chosen if not run.config]:
        raise ValueError(f"the record of {', '.join(gone)} is no longer there: leave it out")
    for setting, (why, pictures) in SAME.items():
        values = {str(run.config.get(setting)) for run in chosen}
        if len(values) > 1 and how in pictures:
            raise ValueError(f"the runs have {setting} {', '.join(sorted(values))}: {why}")
    try:
        return controls.shown(WAYS[how](*chosen)) + _differing(chosen)
    except ValueError as why:
        raise ValueError(str(why).rstrip(".")) from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a record among them is incomplete ({error!r}): leave it out") from None


def _side_by_side(*chosen: Run) -> Table:
    """Runs of any kind in a table, failed ones too."""
    rows = []
    for run, name in zip(chosen, names(chosen), strict=True):
        row, seconds = _row(run.folder), run.summary.get("seconds_per_step")
        rows.append({"run": name} | {key: row[key] for key in ("model", "final loss", "samples/s")})
        rows[-1]["ms per step"] = 1e3 * seconds["median"] if seconds else None
        rows[-1]["peak MB of rank 0"] = row["peak MB"]
        rows[-1]["numbers from"] = "measured here" if run.measured_here else run.origin
    return Table(rows, "Medians of the steps after warm-up")


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


def _differing(chosen: list[Run]) -> str:
    """A sentence on the settings in which the runs differ, so that none is overlooked."""
    own = [flag for run in chosen for flag in run.config.get("own_flags", [])]
    words = []
    for name in dict.fromkeys([*SETTINGS, *own]):
        values = [str(run.config.get(name, "-")) for run in chosen]
        if len(set(values)) > 1:
            words.append(f"{name.replace('_', ' ')} ({', '.join(values)})")
    if not words:
        return ""
    return f"<p>These runs, in this order, also differ in: {html.escape('; '.join(words))}.</p>"


def show(logs: Path = LOGS) -> dict:
    """Show the board; returns the controls by name. Moving any control reads logs/ again."""
    known, _ = entries(logs)

    def draw(chosen: tuple, compare: str, **filters) -> str | Table:
        if chosen:
            return compared([Run(folder) for folder in chosen], compare)
        return table(logs, **filters)

    def react(moved: str, moving: dict) -> None:
        if moved in ("chosen", "compare"):
            return
        filters = {name: moving[name].value for name in (*FILTERS, "sort")}
        options = _offered(found(entries(logs)[0], **filters))
        before, offered = moving["chosen"].value, [folder for _, folder in options]
        moving["chosen"].options = options
        moving["chosen"].value = tuple(folder for folder in before if folder in offered)

    values = {name: [ANY, *sorted({run[name] for run in known})] for name in FILTERS}
    moving = {name: controls.choice(name, options) for name, options in values.items()}
    moving |= {"sort": controls.choice("sort by", list(SORTS))}
    compare = controls.choice("compare by", list(WAYS))
    for control in (*moving.values(), compare):
        control.layout.width = "max-content"  # so that several fit in a row
    chosen = controls.several("runs to compare (several: Ctrl or Shift)", _offered(known))
    return controls.follow(draw, react, **moving, chosen=chosen, compare=compare)


def _offered(fitting: list[dict]) -> list[tuple[str, str]]:
    """(words, folder) of the runs to choose from."""
    options = []
    for number, run in enumerate(fitting[:OFFERED], start=1):
        words = [f"{number}. {run['run']}", run["model"], f"batch {run['batch']}", run["status"]]
        words += [] if run["samples/s"] is None else [f"{run['samples/s']:,.0f} samples/s"]
        words += [] if run["numbers"] == HERE else [run["numbers"]]
        options.append((", ".join([*words, _when(run["began"])]), str(run["folder"])))
    return options
