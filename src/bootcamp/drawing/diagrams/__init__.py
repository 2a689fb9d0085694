"""Diagrams of the lessons' ideas: `plots.show(basics.run_path())`. Each function returns a Figure.

A diagram explains and measures nothing: it draws what it is given, with a text alternative in
`figure.alt`, in the style of the course's plots. Here is what all of them are drawn with.
"""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from bootcamp.drawing.palette import BLACK, INK, PAPER
from bootcamp.drawing.style import SMALL, begin


def canvas(title: str, says: str, height: float = 4.0) -> tuple[Figure, object]:
    """An empty diagram and its axes, without ticks: 100 units wide, 10 high for each inch.

    says: what the diagram shows, in sentences, for a reader who cannot see it.
    """
    figure, axes = begin(title, height + 0.6)
    axes.set(xlim=(-0.5, 100.5), ylim=(0, 10 * height))
    axes.axis("off")
    figure.alt = f"{title}. {says}"
    return figure, axes


def box(axes, x: float, y: float, width: float, height: float, text: str = "", **look) -> None:
    """A rounded box with its lower left corner at (x, y) and text in its middle.

    look: `colour` of the filling, `ink` of the text, `size` of the text, `bold`, `line` style.
    """
    look = {"colour": PAPER, "line": "-", **look}
    shape = {"boxstyle": "round,pad=0,rounding_size=1", "edgecolor": INK, "linewidth": 1.5}
    shape |= {"facecolor": look["colour"], "linestyle": look["line"]}
    axes.add_patch(FancyBboxPatch((x, y), width, height, **shape))
    label(axes, x + width / 2, y + height / 2, text, **look)


def label(axes, x: float, y: float, text: str, **look) -> None:
    """Text around a point; look as for box, `at` for where the point is ("center", "left")."""
    shape = {"ha": look.get("at", "center"), "va": "center", "linespacing": 1.35}
    shape |= {"color": look.get("ink", INK), "fontsize": look.get("size", SMALL)}
    axes.text(x, y, text, fontweight="bold" if look.get("bold") else "normal", **shape)


def arrow(axes, start: tuple, end: tuple, text: str = "", above: float = 1.8, **look) -> None:
    """An arrow from point to point, its text `above` its middle.

    look: `colour`, `bend` (0 is straight), `style` ("<->" for both ways).
    """
    shape = {"mutation_scale": 20, "linewidth": 2.2, "color": look.get("colour", BLACK)}
    shape |= {"connectionstyle": f"arc3,rad={look.get('bend', 0)}"}
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=look.get("style", "-|>"), **shape))
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + above)
    label(axes, *middle, text, ink=look.get("colour", INK))


def arrows(axes, *pairs: tuple, **look) -> None:
    """Several arrows of one look: each pair is (x, y, x, y), from and to."""
    for x, y, to_x, to_y in pairs:
        arrow(axes, (x, y), (to_x, to_y), **look)
