"""An empty canvas for diagrams, and boxes, labels and arrows to draw on it."""

import functools
from collections.abc import Callable

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from bootcamp.drawing.palette import BLACK, INK, PAPER
from bootcamp.drawing.style import SMALL, begin, styled


def canvas(title: str, says: str, height: float = 4.0) -> tuple[Figure, object]:
    """Return an empty diagram and its axes, 100 units wide and 10 high for each inch.

    says: what the diagram shows, in sentences, for a reader who cannot see it.
    """
    figure, axes = begin(title, height + 0.6)
    axes.set(xlim=(-0.5, 100.5), ylim=(0, 10 * height))
    axes.axis("off")
    figure.alt = f"{title}. {says}"
    return figure, axes


def diagram(title: str, height: float) -> Callable:
    """Decorator: make a function that draws on axes one that returns the Figure.

    Its docstring is the diagram's text alternative.
    """

    def decorate(draw: Callable) -> Callable[[], Figure]:
        @functools.wraps(draw)
        def figure_of() -> Figure:
            figure, axes = canvas(title, " ".join(draw.__doc__.split()), height)
            draw(axes)
            return figure

        del figure_of.__wrapped__  # it takes no axes
        return styled(figure_of)

    return decorate


def box(axes, x: float, y: float, width: float, height: float, text: str = "", **look) -> None:
    """Draw a rounded box with its lower left corner at (x, y) and text in its middle.

    look: `colour` of the filling, `ink` of the text, `size` of the text, `bold`, `line` style.
    """
    shape = {"boxstyle": "round,pad=0,rounding_size=1", "edgecolor": INK, "linewidth": 1.5}
    shape |= {"facecolor": look.pop("colour", PAPER), "linestyle": look.pop("line", "-")}
    axes.add_patch(FancyBboxPatch((x, y), width, height, **shape))
    label(axes, x + width / 2, y + height / 2, text, **look)


def boxes(axes, y: float, height: float, *parts: tuple, **look) -> None:
    """Draw boxes side by side: each part is (x, width, text), or with its colour."""
    for x, width, text, *colour in parts:
        box(axes, x, y, width, height, text, **look | ({"colour": colour[0]} if colour else {}))


def label(axes, x: float, y: float, text: str, at="center", **look) -> None:
    """Write text around a point (at="left": right of it); look: as for box, and matplotlib's."""
    look = {"linespacing": 1.35, **look}
    shape = {"color": look.pop("ink", INK), "fontsize": look.pop("size", SMALL)}
    shape["fontweight"] = "bold" if look.pop("bold", False) else "normal"
    axes.text(x, y, text, ha=at, va="center", **shape, **look)


def labels(axes, *places: tuple, **look) -> None:
    """Write labels of one look: each place is (x, y, text)."""
    for x, y, text in places:
        label(axes, x, y, text, **look)


def arrow(axes, start: tuple, end: tuple, text="", above=1.8, colour="", **look) -> None:
    """Draw an arrow from point to point, its text `above` its middle.

    look: `bend` (0 is straight), `style` ("<->" for both ways), and matplotlib's own words.
    """
    shape = {"arrowstyle": look.pop("style", "-|>"), "mutation_scale": 20, "linewidth": 2.2}
    shape |= {"connectionstyle": f"arc3,rad={look.pop('bend', 0)}", "color": colour or BLACK}
    axes.add_patch(FancyArrowPatch(start, end, **shape | look))
    if text:
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        label(axes, x, y + above, text, ink=colour or INK)


def arrows(axes, *pairs: tuple, **look) -> None:
    """Draw arrows of one look: each pair is (x, y, x, y), from and to."""
    for x, y, to_x, to_y in pairs:
        arrow(axes, (x, y), (to_x, to_y), **look)
