"""What the figures of runs share: which runs they take, and one row of a chart for each run."""

from bootcamp.drawing.charts import BOLD, WHITE, beside, rows
from bootcamp.drawing.style import SMALL
from bootcamp.records.runs import Run
from bootcamp.units import number


def check(runs, needs: str = "summary") -> None:
    """Raise unless these are runs whose record holds what a figure draws.

    needs: "steps" (any losses will do), else a run that ended well; "ranks": with a rank's record.
    """
    if not runs:
        raise ValueError("expected at least one run, given none")
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(f"expected runs one after another (*runs), given {type(run).__name__}")
        if needs != "steps" and run.status != "ok":
            raise ValueError(
                f"{run.folder.name} ended with status {run.status}, expected ok. "
                "Launch it again, or leave it out."
            )
        if not run.steps or any(loss is None for loss in run.losses):
            raise ValueError(
                f"{run.folder.name} recorded no losses: it ended before its first step, or was a "
                "rehearsal without numbers (device meta). Launch it on a device, or leave it out."
            )
        if needs == "ranks" and not run.ranks:
            raise ValueError(f"{run.folder.name} holds no record of a rank: launch it again.")


def check_same(runs, value, what: str, advice: str = "Draw the others in a figure of their own."):
    """Raise ValueError unless value(run) is the same for all runs; what: "on one machine"."""
    found = {}
    for run in runs:
        found.setdefault(value(run), run)
    if len(found) > 1:
        given = ", ".join(f"{number(key)} ({run.label})" for key, run in found.items())
        raise ValueError(f"the runs don't fit: expected all {what}, given {given}. {advice}")


def height(bars, each: float = 0.75) -> float:
    """Inches for a figure of so many rows."""
    return max(5.0, 2.3 + each * len(bars))


def value(axes, row: float, x: float, lines: list[str]) -> None:
    """The value right of its bar: the first line bold, the second small below it."""
    beside(axes, x, row, lines[0], up=9 * (len(lines) > 1), bbox=WHITE, **BOLD)
    for line in lines[1:]:
        beside(axes, x, row, line, up=-10, bbox=WHITE, fontsize=SMALL)


def run_rows(axes, labels: list[str], largest: float) -> None:
    """A row for each label, with room for the values on the right; long labels on two lines."""
    words = [label.replace(" (", "\n(", 1) if len(label) > 20 else label for label in labels]
    rows(axes, words, beside=max(0.6, 1.5 - len(labels) / 2))  # a bar alone stays a bar
    axes.set_xlim(0, 1.5 * largest or 1)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.grid(axis="x")
