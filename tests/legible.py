"""Can all of a figure be read in a room, and does it say what it shows and where that is from?

Its texts are measured as matplotlib's renderer sets them. Here, and in the kernels of notebooks,
every figure is measured when it becomes a PNG; on slides before it becomes an SVG. A reader's
notebook never stops because of a picture.
"""

import functools
import itertools
import re
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, NullFormatter
from matplotlib.transforms import Bbox

FOOT = 11  # points that letters need in a notebook
TOUCHING = 1.0  # points that two texts' boxes may share: a letter fills less than its box
NOT_DRAWN = [1.0, 1.0]  # the size that matplotlib gives an annotation whose point is off its axes
ORIGIN = re.compile(
    r"\bmeasured\b|counted here|recorded|published|by (the \w+'s )?formula|predicted|in theory|"
    r"one unit",
    re.IGNORECASE,
)
SHOWN = 40  # characters of a text in a message


class Illegible(AssertionError):
    """A figure with texts that nobody can read. It lists them."""


def demand(figure: Figure, smallest: float = FOOT, slide: bool = False) -> None:
    """Raise Illegible for a figure with faults; a slide has the title and the origin itself."""
    if found := [*faults(figure, smallest), *([] if slide else list_unsaid(figure))]:
        title = " ".join((figure.get_suptitle() or getattr(figure, "alt", "")).split())
        raise Illegible("\n- ".join([f"The figure {title!r} can't be read:", *found]))


def watch() -> None:
    """Measure every figure that this process makes a PNG of."""
    if hasattr(Figure.savefig, "__wrapped__"):
        return
    save = Figure.savefig

    @functools.wraps(save)
    def measured(figure, *args, **kwargs):
        if kwargs.get("format") == "png":
            demand(figure)
        return save(figure, *args, **kwargs)

    Figure.savefig = measured


def watch_slides(embed) -> None:
    """Measure every figure that slides/embed.py puts on a slide, after it has its size there."""
    enlarge = embed._enlarge_letters
    if hasattr(enlarge, "__wrapped__"):
        return

    @functools.wraps(enlarge)
    def measured(figure, px_per_inch):
        enlarge(figure, px_per_inch)
        demand(figure, embed.SIGN_PX * 72 / px_per_inch, slide=True)

    embed._enlarge_letters = measured


def watch_kernels(folder: Path) -> None:
    """Write the startup file with which IPython's kernels watch too; folder: their IPYTHONDIR."""
    startup = folder / "profile_default" / "startup" / "00-legible.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
        "import gc, legible\nlegible.watch()\ngc.set_threshold(10**5)\nsys.path.pop()\n"
        "del gc, legible, sys\n"
    )


def faults(figure: Figure, smallest: float) -> list[str]:
    """What can't be read, a sentence each: texts over each other, cut off, too small,
    or dropped by matplotlib since their point lies beyond the axes.

    smallest: points that letters need.
    """
    figure.draw_without_rendering()  # the layout moves texts
    measured = [(text, text.get_window_extent()) for text in texts(figure)]
    lost = [text for text, box in measured if box.size.tolist() == NOT_DRAWN]
    measured = [(text, box) for text, box in measured if text not in lost]
    small = [
        f"too small: {_name(text)} has {text.get_fontsize():g} points, {smallest:g} are read"
        for text, _ in measured
        if text.get_fontsize() < smallest - 0.01
    ]
    cut = [f"cut off: {_name(text)}" for text, box in measured if not _inside(box, figure.bbox)]
    inner = -TOUCHING * figure.dpi / 72
    over = [
        f"over each other: {_name(one)} and {_name(other)}"
        for (one, box), (other, its) in itertools.combinations(measured, 2)
        if box.padded(inner).overlaps(its.padded(inner))
    ]
    return [*over, *cut, *small, *(f"beyond its axes: {_name(text)}" for text in lost)]


def list_unsaid(figure: Figure) -> list[str]:
    """What a figure of the course, or any with axes, leaves unsaid, a sentence each."""
    charts = [axes for axes in figure.axes if axes.axison]
    alternative = getattr(figure, "alt", "")
    if not charts and not alternative:
        return []  # a picture of a reader's own
    written = " ".join(" ".join(text.get_text() for text in texts(figure)).split())
    found = []
    if len(alternative) < 60 or not re.fullmatch(r".*\.", alternative):
        found.append(f"its alternative is no paragraph of sentences: {alternative!r}")
    if not charts:
        return found  # a drawing, which has no values
    if not re.search(r"\d", alternative):
        found.append("its alternative has no values")
    if not ORIGIN.search(written):
        found.append("nothing on it says where its values are from")
    for way in "xy":
        numbered = any(_has_numbers(getattr(axes, f"{way}axis")) for axes in charts)
        if numbered and not any(getattr(axes, f"get_{way}label")() for axes in charts):
            found.append(f"no label says what the numbers on {way} are")
    return found


def _has_numbers(axis) -> bool:
    """Whether an axis counts, and does not name rows."""
    named = isinstance(axis.get_major_locator(), FixedLocator)
    return not named and not isinstance(axis.get_major_formatter(), NullFormatter)


def texts(figure: Figure) -> list[Text]:
    """The texts that are drawn: those of hidden axes and of ticks beyond the limits are not."""
    found = [*figure.texts]
    for legend in figure.legends:
        found += [*legend.get_texts(), legend.get_title()]
    for axes in figure.axes:
        if axes.get_visible():
            found += _of_axes(axes)
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def _of_axes(axes) -> list[Text]:
    found = [*axes.texts, axes.title, axes._left_title, axes._right_title]
    if legend := axes.get_legend():
        found += [*legend.get_texts(), legend.get_title()]
    for table in axes.tables:
        found += [cell.get_text() for cell in table.get_celld().values()]
    for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        shown = [tick for tick in ticks if tick.get_visible() and low <= tick.get_loc() <= high]
        found += [axis.label, axis.offsetText]
        found += [label for tick in shown for label in (tick.label1, tick.label2)]
    return found


def _inside(box: Bbox, page: Bbox) -> bool:
    return box.x0 >= page.x0 and box.y0 >= page.y0 and box.x1 <= page.x1 and box.y1 <= page.y1


def _name(text: Text) -> str:
    words = " ".join(text.get_text().split())
    return repr(words if len(words) <= SHOWN else f"{words[: SHOWN - 3]}...")
