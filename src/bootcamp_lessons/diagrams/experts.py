"""Diagrams of lesson 08b: how ranks exchange tokens for experts, and experts' imbalance."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrows, box, diagram, label, labels
from bootcamp.drawing.charts import beside
from bootcamp.drawing.palette import BLUE, INK, LIGHT, TINTS, VERMILLION
from bootcamp.drawing.style import FOOT, begin, finish, styled
from bootcamp.records.runs import Run
from bootcamp.units import number


@diagram("A layer of four experts on two ranks", 4.4)
def exchange(axes) -> None:
    """Each rank has its own tokens, a router, and two of the four experts. Its router says which
    experts each token goes to. An all-to-all sends a copy of each token to the ranks of its
    experts: rank 0 keeps those for experts 0 and 1 and sends those for experts 2 and 3 to rank 1,
    and rank 1 the other way. The experts compute. A second all-to-all sends the results back to the
    rank of their token, which adds them up with the router's weights.
    """
    for rank, y in ((0, 25), (1, 3)):
        tint = TINTS[rank]
        box(axes, 0, y + 2, 13, 11, f"tokens\nof rank {rank}", colour=tint, bold=True)
        box(axes, 18, y + 2, 12, 11, "router", colour="white")
        for place in range(2):
            text = f"expert {2 * rank + place}"
            box(axes, 46, y + 8.5 - 8 * place, 15, 6.5, text, colour=LIGHT.green)
        box(axes, 78, y + 2, 20, 11, "weighted sum\nof each token", colour=tint)
        arrows(axes, (13.3, y + 7.5, 17.7, y + 7.5))
        straight = (30.3, y + 7.5, 45.6, y + 7.5), (61.4, y + 7.5, 77.6, y + 7.5)
        arrows(axes, *straight, colour=BLUE)
    across = ((x, y, to, 43 - y) for x, to in ((30.3, 45.6), (61.4, 77.6)) for y in (30, 13))
    arrows(axes, *across, colour=VERMILLION)
    labels(axes, (38, 42, "all-to-all: there"), (69.5, 42, "all-to-all: back"), bold=True)
    label(axes, 0, 21.5, "orange: to another rank", at="left", ink=VERMILLION, size=FOOT)
    label(axes, 0, 18.5, "blue: stays", at="left", ink=BLUE, size=FOOT)


@styled
def imbalance(runs: dict[str, Run], values: dict[str, list[float]], most: float) -> Figure:
    """Draw the busiest expert over the mean, for up to two runs; most: the largest possible."""
    figure, axes = begin("Rows of the busiest expert, as a multiple of the mean", 4.6, grid="y")
    looks = ((VERMILLION, "o"), (BLUE, "s"))
    for (name, steps), (colour, marker) in zip(values.items(), looks, strict=False):
        axes.plot(range(len(steps)), steps, color=colour, marker=marker, markersize=5)
        beside(axes, len(steps) - 1, steps[-1], name, color=colour, fontweight="bold")
    even, uneven = "all experts get equally many", "all tokens choose the same experts"
    for height, up, words in ((1, -10, even), (most, 10, uneven)):
        axes.axhline(height, color=INK, linewidth=1.5, linestyle=":")
        beside(axes, 0, height, words, right=4, up=up, fontsize=FOOT)
    longest = max(map(len, values.values()))
    axes.set(xlim=(-0.5, 1.3 * longest), xticks=range(0, longest + 1, 5))
    axes.set(ylim=(0.6, most + 0.5), xlabel="step", ylabel="busiest / mean")
    says = "; ".join(
        f"{name}: {number(steps[0])} in the first step, {number(steps[-1])} in the last"
        for name, steps in values.items()
    )
    says = f"{figure.get_suptitle()}: {says}."
    return finish(figure, list(runs.values()), says, ("Mean over the layers.",))
