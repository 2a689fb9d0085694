"""The losses of runs, step by step, and their distances from each other."""

import math

from matplotlib.figure import Figure

from bootcamp.drawing.charts import margin
from bootcamp.drawing.palette import BLACK, SKY, line_look
from bootcamp.drawing.plots.run_bars import check
from bootcamp.drawing.style import begin, describe_origins, finish, legend, styled
from bootcamp.records.runs import TOLERANCE, Run, name_runs
from bootcamp.units import number

MANY_STEPS = 60  # from here on, differences are points without a line between them


@styled
def loss_curves(*runs: Run) -> Figure:
    """Draw the loss per step, and below it each run's distance from the first run.

    The first run is a wide pale line and the others are dashes in each other's gaps, so that equal
    curves stay visible. The distance has a log axis that ends in 0, and the proofs' tolerance.
    """
    check(runs, ended_well=False)
    compared = len(runs) > 1
    title = "Loss at each step" + (", and its distance from the first run" if compared else "")
    notes = _notes(runs)
    # lines of the legend and the foot that other figures do not have
    lines = max(0, len(runs) - 4) + len(notes) + len(describe_origins(runs)) - 1
    shape = {"nrows": 2, "height_ratios": [3, 1.5]} if compared else {"nrows": 1}
    height = (6.5 if compared else 5.0) + 0.3 * lines
    figure, axes = begin(title, height, sharex=True, squeeze=False, **shape)
    upper, says = axes[0][0], []
    for position, (run, name) in enumerate(zip(runs, name_runs(runs), strict=True)):
        look = _look_of_line(position, len(runs), len(run.steps))
        upper.plot([row.step for row in run.steps], run.losses, label=name, **look)
        says.append(f"{name} ends at {number(run.losses[-1])}")
    upper.set_ylabel("mean loss (nats)")
    legend(figure, upper.get_lines())
    upper.grid(axis="y")
    if compared:
        says.append(_draw_differences(axes[1][0], runs))
    axes[-1][0].set_xlabel("step")
    axes[-1][0].xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, runs, " ".join([f"Loss per step: {'; '.join(says)}.", *notes]), notes)


def _look_of_line(position: int, count: int, steps: int) -> dict:
    """The first run wide and pale, each other one dashed and marked where the rest are not."""
    if position == 0:
        return {"color": SKY, "linewidth": 9, "alpha": 0.55, "solid_capstyle": "round"}
    others = count - 1
    stride = max(2, steps // (6 * others))
    return {
        **line_look(position),
        "linewidth": 2.5,
        "linestyle": (3 * (position - 1), (3, 3 * (others - 1) or 2)),
        "markevery": (stride * (position - 1), stride * others),
        "markersize": 8,
    }


def _draw_differences(axes, runs) -> str:
    """Draw |loss - loss of the first run| of each other run; return the largest in words."""
    first, known = {row.step: row.loss for row in runs[0].steps}, [TOLERANCE / 10]
    for position, run in enumerate(runs[1:], start=1):
        rows = [row for row in run.steps if row.step in first]
        if not rows:
            raise ValueError(f"{run.label} has no step in common with {runs[0].label}: drop it.")
        distances = [abs(row.loss - first[row.step]) for row in rows]
        known += [each for each in distances if math.isfinite(each)]
        few = len(rows) <= MANY_STEPS
        look = {"linestyle": "-" if few else "none", "linewidth": 1.5, "markevery": 1}
        # equal ones show around each other
        look["markersize"] = (6 if few else 3) + 2 * (len(runs) - 1 - position)
        look = _look_of_line(position, len(runs), len(rows)) | look
        axes.plot([row.step for row in rows], distances, **look)
    axes.axhline(TOLERANCE, color=BLACK, linewidth=2)
    margin(axes, TOLERANCE, "largest\nallowed", x=1.01)
    smallest = min(each for each in known if each > 0)
    axes.set_yscale("symlog", linthresh=smallest, linscale=2)
    most = max(TOLERANCE, *known)
    axes.set_yticks([0, 10.0 ** math.floor(math.log10(most))])
    axes.set(ylim=(-smallest / 5, 20 * most), ylabel="difference")
    far = f"{max(known[1:]):.1e}" if len(known) > 1 else "no number"
    return f"largest difference to the first {far}, allowed {TOLERANCE:.0e}"


def _notes(runs) -> tuple[str, ...]:
    """Name each run whose loss stops being a number, and say if another text was trained on."""
    notes = []
    for run, name in zip(runs, name_runs(runs), strict=True):
        bad = [row.step for row in run.steps if not math.isfinite(row.loss)]
        if bad:
            notes.append(f"{name}: the loss is not a number in {len(bad)} steps, from {bad[0]}.")
    if any(run.other_corpus for run in runs):
        notes.append("Trained on an earlier text: your own runs have other losses.")
    return tuple(notes)
