"""Parts that charts share: rows of bars, stacked bars, words beside a value, logarithmic ticks."""

import math

from matplotlib.patches import Patch, Rectangle

from bootcamp.drawing.palette import BLACK, GREY, INK, KINDS, ORANGE, SKY
from bootcamp.drawing.style import SMALL, device_word

EDGE = {"edgecolor": INK, "linewidth": 0.8}
CROWDED_HATCH, SHARED_HATCH = "//", "xx"
SHARED_NOTE = "Crossed hatching: the cores were shared with another run, so the times mean nothing."
BOLD = {"fontweight": "bold"}
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # behind words that cover a line


def rows(axes, labels, beside: float = 0.6) -> None:
    """Name the rows, the first on top; beside: room above the first and below the last."""
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 1 + beside, -beside)


def bar(axes, row: float, length: float, look: tuple[str, str], left: float = 0.0, **more):
    """Draw a horizontal bar; look: its colour and its hatch."""
    colour, hatch = look
    return axes.barh(row, length, left=left, color=colour, hatch=hatch, **EDGE | more)


def device_colour(run) -> str:
    """Return the colour of what was measured on CPU ranks, or on GPUs."""
    return SKY if device_word(run) == "CPU" else ORANGE


def run_bar(axes, row: float, length: float, run, **more):
    """Draw a bar of a run: blue for CPU ranks, orange for GPUs.

    Hatched: more ranks than cores; crossed: cores that were shared with another run.
    """
    more.setdefault("color", device_colour(run))
    if run.oversubscribed or run.shared_cores:
        more |= {"hatch": SHARED_HATCH if run.shared_cores else CROWDED_HATCH, **EDGE}
    return axes.barh(row, length, **more)


def cross(*panels) -> None:
    """Cross the ground of axes that show runs on shared cores alone, as `run_bar` does a bar."""
    for axes in panels:
        look = {"facecolor": "none", "edgecolor": GREY, "linewidth": 0, "hatch": SHARED_HATCH}
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, **look))


def shared_note(runs) -> tuple[str, ...]:
    """Return the foot's sentence on runs that shared their cores, if there are any."""
    return (SHARED_NOTE,) if any(run.shared_cores for run in runs) else ()


def stack_bars(axes, row: float, sizes: dict, scale: float, limit=math.inf, looks=KINDS) -> float:
    """Stack the bytes of each kind of memory, cut off at `limit`; return the bar's end.

    sizes: {kind of looks: bytes}, also "optimizer". scale: bytes in the unit of axis and limit.
    """
    left = 0.0
    for kind, look in looks.items():
        size = sizes.get(kind, sizes.get(kind.split()[0], 0)) / scale
        bar(axes, row, max(0.0, min(size, limit - left)), look, left, height=0.6)
        left += size
    return left


def handles(looks: dict) -> list[Patch]:
    """Make a legend's patches from {words: (colour, hatch)}."""
    return [
        Patch(facecolor=colour, hatch=hatch, label=words, **EDGE)
        for words, (colour, hatch) in looks.items()
    ]


def beside(axes, x: float, y: float, words: str, right: float = 12, up: float = 0, **look):
    """Write words so many typographic points right of a point."""
    look = {"va": "center", "textcoords": "offset points", **look}
    return axes.annotate(words, (x, y), (right, up), **look)


def above(axes, x: float, y: float, words: str, up: float = 4, **look):
    """Write words above a point, or below it; xycoords= for a place in other coordinates."""
    return beside(axes, x, y, words, right=0, up=up, **{"ha": "center", "va": "baseline", **look})


def margin(axes, y: float, words: str, x: float = 1.02, **look) -> None:
    """Write small words on the right of the axes, at a height of the data."""
    look = {"va": "center", "fontsize": SMALL, "transform": axes.get_yaxis_transform(), **look}
    axes.text(x, y, words, **look)


def log_axis(axis, ticks, words=None, base: float = 10) -> None:
    """Make an axis logarithmic with these ticks alone; words: their labels."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=base)
    axis.set_ticks(list(ticks), words or [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def marker_line(axes, row: float, x: float, half: float = 0.4, **look) -> None:
    """Draw an upright line across a row: a value by formula on a bar of measured ones."""
    axes.plot([x, x], [row - half, row + half], **{"color": BLACK, "linewidth": 2.5, **look})
