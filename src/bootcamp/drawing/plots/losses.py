"""The losses of runs, step by step, and their distances from each other."""

import math

from matplotlib.figure import Figure

from bootcamp.drawing.charts import margin
from bootcamp.drawing.palette import BLACK, SKY, line_look
from bootcamp.drawing.plots.run_bars import check
from bootcamp.drawing.style import begin, finish, legend, origins, styled
from bootcamp.records.runs import TOLERANCE, Run, names
from bootcamp.units import number

MANY_STEPS = 60  # from here on, differences are points without a line between them


@styled
def loss_curves(*runs: Run) -> Figure:
    """Loss per step, and below it each run's distance from the first run.

    The first run is a wide pale line and the others are dashes that leave each other's gaps free,
    so that equal curves stay visible. The distance has a log axis with the tolerance of the
    equality proofs, 1e-5; equal losses are drawn on a line of their own at its bottom.
    """
    check(runs, needs="steps")
    compared = len(runs) > 1
    title = "Loss at each step" + (", and its distance from the first run" if compared else "")
    notes = _notes(runs)
    lines = max(0, len(runs) - 4) + len(notes) + len(origins(runs)) - 1  # of legend and foot
    shape = {"nrows": 2, "height_ratios": [3, 1.5]} if compared else {"nrows": 1}
    height = (6.5 if compared else 5.0) + 0.3 * lines
    figure, axes = begin(title, height, sharex=True, squeeze=False, **shape)
    upper, says = axes[0][0], []
    for position, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        look = _line(position, len(runs), len(run.steps))
        upper.plot(*zip(*_losses(run).items(), strict=True), label=name, **look)
        says.append(f"{name} ends at {number(run.losses[-1])}")
    upper.set_ylabel("mean loss (nats)")
    legend(figure, upper.get_lines())
    upper.grid(axis="y")
    if compared:
        says.append(_draw_differences(axes[1][0], runs))
    axes[-1][0].set_xlabel("step")
    axes[-1][0].xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, runs, " ".join([f"Loss per step: {'; '.join(says)}.", *notes]), notes)


def _line(position: int, count: int, steps: int) -> dict:
    """The first run wide and pale, each other one dashed and marked where the rest are not."""
    if position == 0:
        return {"color": SKY, "linewidth": 9, "alpha": 0.55, "solid_capstyle": "round"}
    others = count - 1
    gap = 3 * (others - 1) or 2
    apart = max(2, steps // (6 * others))
    return {
        **line_look(position),
        "linewidth": 2.5,
        "linestyle": (3 * (position - 1), (3, gap)),
        "markevery": (apart * (position - 1), apart * others),
        "markersize": 8,
    }


def _losses(run: Run) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in run.steps}


def _differences(runs) -> list[dict[int, float]]:
    """|loss - loss of the first run| by step, for each other run; NaN where either is no number.

    Raises ValueError where a run has no step in common with the first.
    """
    first, rows = _losses(runs[0]), []
    for run in runs[1:]:
        apart = {s: abs(loss - first[s]) for s, loss in _losses(run).items() if s in first}
        if not apart:
            raise ValueError(
                f"{run.label} has no step in common with {runs[0].label}: leave it out."
            )
        rows.append({step: d if math.isfinite(d) else math.nan for step, d in apart.items()})
    return rows


def _draw_differences(axes, runs) -> str:
    rows = _differences(runs)
    finite = [value for row in rows for value in row.values() if math.isfinite(value)]
    smallest = min([1e-6, *(value for value in finite if value > 0)])
    floor = 10.0 ** (math.floor(math.log10(smallest)) - 2)  # where equal losses are drawn
    top = max([TOLERANCE, *finite])
    for position, row in enumerate(rows, start=1):
        few = len(row) <= MANY_STEPS
        look = {"linestyle": "-" if few else "none", "linewidth": 1.5, "markevery": 1}
        # equal ones show around each other
        look["markersize"] = (6 if few else 3) + 2 * (len(rows) - position)
        heights = [max(value, floor) for value in row.values()]
        axes.plot(list(row), heights, **_line(position, len(runs), len(row)) | look)
    axes.axhline(TOLERANCE, color=BLACK, linewidth=2)
    margin(axes, TOLERANCE, "largest\nallowed", x=1.01)
    axes.set_ylabel("difference")
    _difference_axis(axes, floor, top)
    far = f"{max(finite):.1e}" if finite else "no number"
    return f"largest difference to the first {far}, allowed {TOLERANCE:.0e}"


def _difference_axis(axes, floor: float, top: float) -> None:
    low, high = round(math.log10(floor)), math.ceil(math.log10(top))
    stride = math.ceil((high - low) / 3)
    decades = [d for d in range(low + stride, high + 1) if (d + 5) % stride == 0]
    axes.set_yscale("log")
    axes.set_ylim(floor / 3, top * 20)
    labels = ["equal", *(f"$10^{{{decade}}}$" for decade in decades)]
    axes.set_yticks([floor, *(10.0**decade for decade in decades)], labels)
    axes.minorticks_off()


def _notes(runs) -> tuple[str, ...]:
    """A sentence for each run whose loss stops being a number: a gap in a curve needs a reason.

    And one for recorded runs whose text was another one than that of runs made now.
    """
    notes = []
    for run, name in zip(runs, names(runs), strict=True):
        steps = [step for step, loss in _losses(run).items() if not math.isfinite(loss)]
        if steps:
            words = f"the loss is not a number in {len(steps)} steps, from {steps[0]}."
            notes.append(f"{name}: {words}")
    if any(run.other_corpus for run in runs):
        notes.append("Trained on an earlier text: your own runs have other losses.")
    return tuple(notes)
