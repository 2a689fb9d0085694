"""The style of all figures: title, legend, a foot that names the machine, a text alternative."""

import base64
import functools
import html
import io
import sys
import textwrap
import threading

import numpy as np
from cycler import cycler
from matplotlib import style
from matplotlib.figure import Figure

from bootcamp import quietness
from bootcamp.drawing.palette import COLOURS, GREY, INK
from bootcamp.records.measurement import SHARED
from bootcamp.records.runs import Run

SMALL, FOOT = 12, 11  # points
TITLE_CHARACTERS, FOOT_CHARACTERS, LEGEND_CHARACTERS = 60, 114, 84  # that go on one line
STYLE = {
    "figure.dpi": 110,
    "font.size": 14,
    "axes.titlesize": 14,
    "axes.labelsize": 14,
    "figure.titlesize": 18,
    "figure.titleweight": "bold",
    "legend.fontsize": 13,
    "legend.frameon": False,
    "lines.linewidth": 3,
    "lines.markersize": 10,
    "axes.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "hatch.linewidth": 1.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GREY,
    "savefig.facecolor": "white",
}
# The style is the process's: where a kernel moves widgets in threads, they draw one after another.
DRAWING = threading.RLock()


def styled(draw):
    """Decorator: the function draws in the course's style, whatever the reader's own settings."""

    @functools.wraps(draw)
    def inside(*args, **kwargs):
        with DRAWING, style.context(STYLE, after_reset=True):
            return draw(*args, **kwargs)

    return inside


def begin(title: str, height: float = 5.0, mosaic: list | None = None, grid="", **subplots):
    """Return a new figure of 10 x height inches, and its axes as Figure.subplots has them.

    mosaic: panels of unequal width, as for Figure.subplot_mosaic. grid: "x" or "y", if any.
    """
    figure = Figure(figsize=(10, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS), x=0.012, ha="left")
    if mosaic:
        return figure, figure.subplot_mosaic(mosaic, **subplots)
    panels = figure.subplots(**subplots)
    for axes in figure.axes if grid else ():
        axes.grid(axis=grid)
    return figure, panels


def finish(figure: Figure, runs, says: str, notes: tuple[str, ...] = ()) -> Figure:
    """Put notes and origin at the foot, and the text alternative into `figure.alt`.

    Figures of runs that were measured here also say how quiet this machine was. says: a sentence
    with the figure's values, to which the alternative adds their origin. notes: other sentences.
    """
    sources = describe_origins(runs)
    here = any("measured here" in source for source in sources)
    if here and (last := quietness.read_last(quietness.FOOT_SECONDS)):
        sources.append(last.foot)
    wrapper = textwrap.TextWrapper(FOOT_CHARACTERS, break_on_hyphens=False)
    foot = "\n".join(map(wrapper.fill, [*notes, *sources]))
    figure.supxlabel(foot, x=0.012, ha="left", fontsize=FOOT, linespacing=1.4)
    figure.alt = " ".join([says, *sources])
    return figure


def legend(figure: Figure, handles) -> None:
    """Name the handles between the title and the axes, where they cover nothing."""
    labels = [handle.get_label() for handle in handles]
    for columns in range(max(1, min(4, len(labels))), 0, -1):
        parts = np.array_split(labels, columns)  # as matplotlib splits them
        # a line and a gap are six characters wide
        if sum(max(map(len, part)) + 6 for part in parts) <= LEGEND_CHARACTERS:
            break
    figure.legend(  # the layout puts it over the figure's title: it has a blank one of that size
        title="\n".join(" " for _ in figure.get_suptitle().splitlines()),
        title_fontproperties={"size": STYLE["figure.titlesize"], "weight": "bold"},
        alignment="left",
        handles=list(handles),
        loc="outside upper left",
        ncols=columns,
        handlelength=2.6,
        columnspacing=1.4,
    )


def describe_origins(runs) -> list[str]:
    """Return a sentence for each machine that the runs are from: ranks, device, torch, how."""
    groups = {}
    for run in runs:
        where, _, how = run.origin.removesuffix(f" on {SHARED}").rpartition("; ")
        groups.setdefault((where, device_word(run)), {})[run] = how
    return [
        f"{_describe_ranks(list(group), word)} on {where}; {_describe_ways(group)}."
        for (where, word), group in groups.items()
    ]


def _describe_ways(group: dict[Run, str]) -> str:
    """Say how runs were measured: "measured here, some on shared cores"."""
    shared = [run for run in group if run.shared_cores]
    some = f"{', some' if len(shared) < len(group) else ''} on {SHARED}" if shared else ""
    return ", ".join(dict.fromkeys(group.values())) + some


def _describe_ranks(runs, word: str) -> str:
    if runs[0].what:
        return runs[0].what
    worlds = sorted({run.world for run in runs})
    ranks = f"{join_words(worlds)} {word} {'rank' if worlds == [1] else 'ranks'}"
    crowded = sorted({run.world for run in runs if run.oversubscribed})
    if not crowded:
        return ranks
    which = "" if crowded == worlds else f"{join_words(crowded)}: "
    return f"{ranks} ({which}more ranks than {'GPUs' if word == 'GPU' else 'cores'})"


def device_word(run: Run) -> str:
    """Return "CPU" or "GPU"."""
    return "GPU" if run.device == "cuda" else "CPU"


def join_words(values) -> str:
    """Join as in "1, 2 and 4"."""
    *firsts, last = map(str, values)
    return f"{', '.join(firsts)} and {last}" if firsts else last


@styled
def png(figure: Figure) -> bytes:
    """Return the figure as a PNG, with its text alternative in the file as well."""
    content = io.BytesIO()
    about = {"Title": figure.get_suptitle().replace("\n", " "), "Description": alt(figure)}
    figure.savefig(content, format="png", metadata=about)
    return content.getvalue()


def alt(figure: Figure) -> str:
    """Return the figure's text alternative, or its title."""
    return getattr(figure, "alt", figure.get_suptitle())


def image(figure: Figure) -> str:
    """Return the figure as an HTML image with its text alternative."""
    data = base64.b64encode(png(figure)).decode()
    return (
        f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt(figure))}" '
        'style="max-width: 100%; height: auto">'
    )


def show(figure: Figure) -> None:
    """Display a figure in the notebook, with its text alternative, and close it."""
    from IPython.display import HTML, display

    display(HTML(image(figure)))
    if pyplot := sys.modules.get("matplotlib.pyplot"):  # only pyplot keeps figures open
        pyplot.close(figure)
