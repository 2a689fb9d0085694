"""The best plan at each number of GPUs, and where limits set in: `planning.grown`'s tables."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import EDGE, WHITE, handles
from bootcamp.drawing.palette import BLUE, GREY, VERMILLION
from bootcamp.drawing.plots.plan_choice import STEP, WAITS
from bootcamp.drawing.style import FOOT, SMALL, begin, finish, legend, styled
from bootcamp.units import three_digits

AXES = ("tensor", "pipeline", "data")
NOTES = (
    "By the planner's formulas, nothing here is measured; the batch is the same for all. batch: "
    "from here on there is less than a sample for each GPU. Other marks: from here on the step "
    "waits for it for more than a tenth of its time.",
)


@styled
def what_breaks(table) -> Figure:
    """Tokens/s of a GPU as GPUs are added, the step's shares, and where each limit sets in.

    table: rows of planning.grown. Raises ValueError where no number of GPUs has a plan.
    """
    lines = list(table)
    known = [line for line in lines if line["shares"]]
    if not known:
        raise ValueError("no number of GPUs has a plan that fits")
    heights = {"height_ratios": (1, 1.3)}
    title = "Predicted: what breaks as GPUs are added"
    figure, (top, axes) = begin(title, 7.4, nrows=2, sharex=True, gridspec_kw=heights)
    _speed(top, lines, known)
    top.set_title(getattr(table, "caption", ""), loc="left", fontsize=SMALL)
    parts = [part for part in STEP if any(line["shares"][part] > 0.002 for line in known)]
    for place, line in enumerate(lines):
        _shares(axes, place, line, parts)
    words = [[f"{line['GPUs']:,}", *(_ranks(line[axis]) for axis in AXES)] for line in lines]
    axes.set_xticks(range(len(lines)), ["\n".join(each) for each in words], fontsize=FOOT)
    axes.tick_params(axis="x", length=0, pad=9)
    top.tick_params(axis="x", length=0)
    names = {"ha": "right", "va": "top", "fontsize": FOOT, "linespacing": 1.2}
    place = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate("\n".join(("GPUs", *AXES)), (0, 0), (-8, -9), **place, **names)
    axes.set(ylim=(0, 100), xlim=(-0.6, len(lines) - 0.4), ylabel="% of the step")
    legend(figure, handles({STEP[part][0]: STEP[part][1:] for part in parts}))
    return finish(figure, (), _says(lines, parts), (*NOTES, WAITS))


def _ranks(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _speed(axes, lines: list[dict], known: list[dict]) -> None:
    """Tokens/s of a GPU, with a line and words where a limit sets in."""
    speeds = [line["tokens_per_second_per_gpu"] for line in lines]
    places = [place for place, speed in enumerate(speeds) if speed is not None]
    axes.plot(places, [speeds[place] for place in places], "o-", color=BLUE)
    most = max(line["tokens_per_second_per_gpu"] for line in known)
    for place, line in enumerate(lines):
        if line["shares"] and line["marks"]:
            axes.axvline(place - 0.45, color=VERMILLION, linestyle="--", linewidth=1.5)
            look = {"rotation": 90, "va": "bottom", "fontsize": SMALL, "color": VERMILLION}
            axes.text(place - 0.4, 0.05 * most, ", ".join(line["marks"]), bbox=WHITE, **look)
    axes.set(ylim=(0, 1.15 * most), ylabel="tokens/s of a GPU")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="y")


def _shares(axes, place: int, line: dict, parts: list[str]) -> None:
    """One number of GPUs: its step's parts on top of each other, or why it has no plan."""
    below = 0.0
    for part in parts if line["shares"] else ():
        _, colour, hatch = STEP[part]
        share = 100 * line["shares"][part]
        axes.bar(place, share, 0.8, bottom=below, color=colour, hatch=hatch, **EDGE)
        below += share
    if not line["shares"]:
        axes.bar(place, 100, 0.8, color="white", edgecolor=GREY, hatch="///")
        look = {"rotation": 90, "ha": "center", "va": "center", "fontsize": SMALL}
        axes.text(place, 50, line["marks"][0], bbox=WHITE, **look)


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
