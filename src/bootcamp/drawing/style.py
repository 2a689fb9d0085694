"""What all figures have in common: one style, a title, a foot that names the machine, a text
alternative, and `show(figure)`.
"""

import base64
import contextlib
import functools
import html
import io
import itertools
import os
import re
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
from cycler import cycler
from matplotlib import style
from matplotlib.figure import Figure

from bootcamp import quiet
from bootcamp.drawing.palette import COLOURS, GREY, INK
from bootcamp.records.runs import Run

SMALL, FOOT = 12, 11
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
    """A new figure of 10 x height inches: (figure, axes), the axes as Figure.subplots has them.

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

    Figures of runs that were measured here also say how quiet this machine was.

    says: one sentence with the values that the figure shows; the alternative adds their origin.
    notes: what a reader must know to read the values, a sentence each.
    """
    sources = origins(runs)
    here = any("measured here" in source for source in sources)
    if here and (quietness := quiet.last(quiet.FOOT_SECONDS)):
        sources.append(quietness.foot)
    wrap = textwrap.TextWrapper(FOOT_CHARACTERS, break_on_hyphens=False).wrap
    lines = [line for text in [*notes, *sources] for line in wrap(text)]
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=FOOT, linespacing=1.4)
    figure.alt = " ".join([says, *sources])
    return figure


def legend(figure: Figure, handles) -> None:
    """Name the handles between the title and the axes, where they cover nothing.

    The layout puts a legend outside the axes over the title, so it has a blank title of that size.
    """
    figure.legend(
        title="\n".join(" " for _ in figure.get_suptitle().splitlines()),
        title_fontproperties={"size": STYLE["figure.titlesize"], "weight": "bold"},
        alignment="left",
        handles=handles,
        loc="outside upper left",
        ncols=_columns([handle.get_label() for handle in handles]),
        handlelength=2.6,
        columnspacing=1.4,
    )


def _columns(labels: list[str]) -> int:
    """How many columns of these labels, six characters of line and gap each, go side by side."""
    for count in range(min(4, len(labels)), 1, -1):
        columns = np.array_split(labels, count)  # as matplotlib splits them
        if sum(max(map(len, column)) + 6 for column in columns) <= LEGEND_CHARACTERS:
            return count
    return 1


def origins(runs) -> list[str]:
    """Where the numbers come from, one sentence for each machine: ranks, device, torch, how."""
    machines = {}
    for run in runs:
        where, _, how = run.origin.rpartition("; ")
        machines.setdefault((where, device_word(run)), []).append((run, how))
    return [
        f"{_ranks([run for run, _ in group], word)} on {where}; "
        f"{', '.join(dict.fromkeys(how for _, how in group))}."
        for (where, word), group in machines.items()
    ]


def _ranks(runs, word: str) -> str:
    if what := getattr(runs[0], "what", ""):
        return what
    worlds = sorted({run.world for run in runs})
    crowded = sorted({run.world for run in runs if run.oversubscribed})
    ranks = "rank" if worlds == [1] else "ranks"
    which = "" if crowded == worlds else f"{listed(crowded)}: "
    units = "GPUs" if runs[0].device == "cuda" else "cores"
    aside = f" ({which}more ranks than {units})" if crowded else ""
    return f"{listed(worlds)} {word} {ranks}{aside}"


def device_word(run: Run) -> str:
    """CPU or GPU."""
    return "GPU" if run.device == "cuda" else "CPU"


def listed(values) -> str:
    """1, 2 and 4"""
    words = [str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@styled
def png(figure: Figure) -> bytes:
    """The figure as a PNG, with its text alternative in the file as well."""
    content = io.BytesIO()
    about = {"Title": figure.get_suptitle().replace("\n", " "), "Description": alt(figure)}
    figure.savefig(content, format="png", metadata=about)
    return content.getvalue()


def alt(figure: Figure) -> str:
    """The figure's text alternative; its title where it has none."""
    return getattr(figure, "alt", figure.get_suptitle())


def image(figure: Figure) -> str:
    """The figure as an HTML image with its text alternative, for notebooks and widgets."""
    data = base64.b64encode(png(figure)).decode()
    return (
        f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt(figure))}" '
        'style="max-width: 100%; height: auto">'
    )


def show(figure: Figure) -> None:
    """Display a figure in the notebook, with its text alternative, and close it.

    Where the environment variable BOOTCAMP_FIGURES names a folder, the PNG is saved there too.
    """
    from IPython.display import HTML, display

    if folder := os.environ.get("BOOTCAMP_FIGURES"):
        save(png(figure), figure.get_suptitle(), Path(folder))
    display(HTML(image(figure)))
    if pyplot := sys.modules.get("matplotlib.pyplot"):  # only pyplot keeps figures open
        pyplot.close(figure)


def save(content: bytes, title: str, folder: Path) -> Path:
    """Write the PNG as `007-training-speed.png`: a running number, never over another file."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(re.findall(r"[a-z0-9]+", title.lower())[:10]) or "figure"
    taken = [int(path.name[:3]) for path in folder.glob("[0-9][0-9][0-9]-*.png")]
    numbers = itertools.count(max(taken, default=0) + 1)
    while True:
        path = folder / f"{next(numbers):03d}-{name}.png"
        with contextlib.suppress(FileExistsError), open(path, "xb") as file:
            file.write(content)
            return path
