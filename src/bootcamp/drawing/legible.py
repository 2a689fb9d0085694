"""Can all of a figure be read in a room? Its texts are measured as matplotlib's renderer sets them.

`style.png`, and with it `style.show`, demands it where BOOTCAMP_STRICT_FIGURES=1 is in the
environment, as it is in the course's tests; a reader's notebook never stops because of a picture.
"""

import itertools
import os

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

VARIABLE = "BOOTCAMP_STRICT_FIGURES"
TOUCHING = 1.0  # points that two texts' boxes may share: a letter fills less than its box
NOT_DRAWN = [1.0, 1.0]  # the size that matplotlib gives an annotation whose point is off its axes
SHOWN = 40  # characters of a text in a message


class Illegible(AssertionError):
    """A figure with texts that nobody can read. It lists them."""


def demand(figure: Figure, smallest: float, title: str = "") -> None:
    """Raise Illegible for a figure with faults, where the environment asks for it.

    title: what the message calls it, if the figure has none of its own.
    """
    if os.environ.get(VARIABLE, "0") == "0":
        return
    if found := faults(figure, smallest):
        title = " ".join((figure.get_suptitle() or title).split()) or "without a title"
        raise Illegible("\n- ".join([f"The figure {title!r} can't be read:", *found]))


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
