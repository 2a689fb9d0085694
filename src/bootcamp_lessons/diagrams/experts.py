"""Lesson 08b: rows on their way to experts of other ranks, and how unequal their loads are."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, diagram, label
from bootcamp.drawing.charts import beside
from bootcamp.drawing.palette import BLUE, INK, LIGHT, TINTS, VERMILLION
from bootcamp.drawing.style import FOOT, begin, finish, styled
from bootcamp.records.runs import Run
from bootcamp.units import number

PLACES = ((0, "tokens\nof rank 0"), (1, "tokens\nof rank 1"))


@diagram("A layer of four experts on two ranks", 4.4)
def exchange(axes) -> None:
    """Each rank has its own tokens, a router, and two of the four experts. Its router says which
    experts each token goes to. An all-to-all sends each row to the rank that has its expert: rank 0
    keeps those for experts 0 and 1 and sends those for experts 2 and 3 to rank 1, and rank 1 the
    other way. The experts compute. A second all-to-all sends the results back to the rank of their
    token, which adds them up with the router's weights.
    """
    for rank, y in ((0, 25), (1, 3)):
        tint = TINTS[rank]
        box(axes, 0, y + 2, 13, 11, PLACES[rank][1], colour=tint, bold=True)
        box(axes, 18, y + 2, 12, 11, "router", colour="white")
        for place in range(2):
            text = f"expert {2 * rank + place}"
            box(axes, 46, y + 8.5 - 8 * place, 15, 6.5, text, colour=LIGHT.green)
        box(axes, 78, y + 2, 20, 11, "weighted sum\nof each token", colour=tint)
        arrows(axes, (13.3, y + 7.5, 17.7, y + 7.5))
        straight = (30.3, y + 7.5, 45.6, y + 7.5), (61.4, y + 7.5, 77.6, y + 7.5)
        arrows(axes, *straight, colour=BLUE)
    for x, to in ((30.3, 45.6), (61.4, 77.6)):
        arrow(axes, (x, 30), (to, 13), colour=VERMILLION)
        arrow(axes, (x, 13), (to, 30), colour=VERMILLION)
    label(axes, 38, 42, "all-to-all: there", bold=True, ink=INK)
    label(axes, 69.5, 42, "all-to-all: back", bold=True, ink=INK)
    label(axes, 0, 21.5, "red: to another rank", at="left", ink=VERMILLION, size=FOOT)
    label(axes, 0, 18.5, "blue: stays", at="left", ink=BLUE, size=FOOT)


@styled
def imbalance(runs: dict[str, Run], values: dict[str, list[float]], most: float) -> Figure:
    """Draw each run's imbalance (busiest / mean) by step; most: the largest possible."""
    figure, axes = begin("Rows of the busiest expert, as a multiple of the mean", 4.6, grid="y")
    looks = ((VERMILLION, "o"), (BLUE, "s"))
    for (name, steps), (colour, marker) in zip(values.items(), looks, strict=False):
        axes.plot(range(len(steps)), steps, color=colour, marker=marker, markersize=5)
        beside(axes, len(steps) - 1, steps[-1], name, color=colour, fontweight="bold")
    axes.axhline(1, color=INK, linewidth=1.5, linestyle=":")
    axes.axhline(most, color=INK, linewidth=1.5, linestyle=":")
    beside(axes, 0, most, "all tokens choose the same experts", right=4, up=10, fontsize=FOOT)
    beside(axes, 0, 1, "all experts get equally many", right=4, up=-10, fontsize=FOOT)
    longest = max(map(len, values.values()))
    axes.set_xlim(-0.5, 1.3 * longest)
    axes.set_xticks(range(0, longest + 1, 5))
    axes.set_ylim(0.6, most + 0.5)
    axes.set_xlabel("step")
    axes.set_ylabel("busiest / mean")
    says = "; ".join(
        f"{name}: {number(steps[0])} in the first step, {number(steps[-1])} in the last"
        for name, steps in values.items()
    )
    note = "Mean over the layers."
    return finish(figure, list(runs.values()), f"{figure.get_suptitle()}: {says}.", (note,))
