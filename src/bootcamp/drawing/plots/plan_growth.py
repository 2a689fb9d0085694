"""The best plan at each number of GPUs, and where limits set in: `planning.grown`'s tables."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import BOLD, EDGE, WHITE, handles
from bootcamp.drawing.palette import GREY, VERMILLION
from bootcamp.drawing.plots.plan_choice import STEP, WAITS
from bootcamp.drawing.style import FOOT, SMALL, begin, finish, legend, styled
from bootcamp.units import three_digits

ROWS = ("GPUs", "tensor", "pipeline", "data", "tokens/s")
NONE = {"no plan fits the memory": "does not fit", "no plan divides the batch": "batch too small"}
NOTES = (
    "By the planner's formulas, nothing here is measured; the same batch for all. Tokens/s: of a "
    "GPU. In red, what sets in: batch, less than a sample for each GPU; else what the step waits "
    f"for longer than a tenth of its time. {WAITS}",
)


@styled
def what_breaks(table) -> Figure:
    """The shares of a step as GPUs are added, and in red what sets in at which number of them.

    table: rows of planning.grown. Raises ValueError where no number of GPUs has a plan.
    """
    lines = list(table)
    known = [line for line in lines if line["shares"]]
    if not known:
        raise ValueError("no number of GPUs has a plan that fits")
    figure, axes = begin("Predicted: what breaks as GPUs are added", 6.0)
    parts = [part for part in STEP if any(line["shares"][part] > 0.002 for line in known)]
    for place, line in enumerate(lines):
        _column(axes, place, line, parts)
    words = ["\n".join(_cells(line)) for line in lines]
    axes.set_xticks(range(len(lines)), words, fontsize=FOOT)
    axes.tick_params(axis="x", length=0, pad=9)
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "linespacing": 1.2}
    names = {"ha": "right", "va": "top", "fontsize": FOOT}
    axes.annotate("\n".join(ROWS), (0, 0), (-8, -9), **place, **names)
    axes.set(ylim=(0, 100), xlim=(-0.6, len(lines) - 0.4), ylabel="% of the step")
    tallest = max(len(line["marks"]) for line in known)  # lines of words above the axes
    title = getattr(table, "caption", "") or " "
    axes.set_title(title, loc="left", fontsize=SMALL, pad=8 + 16 * tallest)
    legend(figure, handles({STEP[part][0]: STEP[part][1:] for part in parts}))
    return finish(figure, (), _says(lines, parts), NOTES)


def _cells(line: dict) -> list[str]:
    """What stands below a column."""
    found = [line[name] for name in ROWS[:-1]]
    speed = line["tokens_per_second_per_gpu"]
    found = ["-" if number is None else f"{number:,}" for number in found]
    return [*found, "-" if speed is None else three_digits(speed)]


def _column(axes, place: int, line: dict, parts: list[str]) -> None:
    """One number of GPUs: its step's parts and what sets in above them, or why it has no plan."""
    below, look = 0.0, {"ha": "center", "fontsize": FOOT}
    for part in parts if line["shares"] else ():
        _, colour, hatch = STEP[part]
        share = 100 * line["shares"][part]
        axes.bar(place, share, 0.8, bottom=below, color=colour, hatch=hatch, **EDGE)
        below += share
    if line["shares"]:
        words = "\n".join(line["marks"]).replace("launches", "launch")  # it has one column's room
        axes.text(place, 102, words, va="bottom", color=VERMILLION, **BOLD, **look)
        return
    axes.bar(place, 100, 0.8, color="white", edgecolor=GREY, hatch="///")
    (why,) = line["marks"]
    axes.text(place, 50, NONE.get(why, why), rotation=90, va="center", bbox=WHITE, **look)


def _says(lines: list[dict], parts: list[str]) -> str:
    """The figure in words."""
    told = []
    for line in lines:
        marks = f" ({', '.join(line['marks'])})" if line["marks"] else ""
        if not line["shares"]:
            told.append(f"{line['GPUs']:,} GPUs{marks}")
            continue
        shares = ", ".join(f"{STEP[part][0]} {line['shares'][part]:.0%}" for part in parts)
        speed = three_digits(line["tokens_per_second_per_gpu"])
        told.append(f"{line['GPUs']:,} GPUs: {speed} tokens/s each{marks}, {shares}")
    return f"Predicted. {'; '.join(told)}."
