"""Predictions beside published runs: `planning.published_beside_predicted`'s tables."""

from statistics import median

from matplotlib.figure import Figure

from bootcamp.drawing.charts import margin, rows
from bootcamp.drawing.palette import BLACK, BLUE, LIGHT, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, styled

GOOD = 5  # % of error: what the shaded band shows
NAMED = 3  # of the worst


@styled
def predicted_and_published(table) -> Figure:
    """The error of each published run in %, a row for each source; the worst are marked and named.

    table: rows of planning.published_beside_predicted.
    """
    lines = list(table)
    groups = {}
    for line in lines:
        groups.setdefault(line["published by"], []).append(line)
    order = sorted(groups, key=lambda name: -len(groups[name]))
    title = "How wrong the planner is on published runs"
    figure, axes = begin(title, 2.6 + 0.42 * len(order))
    worst = sorted(lines, key=lambda line: -abs(line["error %"]))[:NAMED]
    axes.axvspan(-GOOD, GOOD, color=LIGHT.green)
    axes.axvline(0, color=BLACK, linewidth=1.5)
    said = []
    for row, name in enumerate(order):
        errors = [line["error %"] for line in groups[name]]
        axes.plot(errors, [row] * len(errors), "o", color=BLUE, alpha=0.6, markersize=8)
        sizes = [abs(error) for error in errors]
        words = f"{len(errors)} runs: median {median(sizes):.1f} %, worst {max(sizes):.0f} %"
        margin(axes, row, words, x=1.015)
        said.append(f"{name}: {words}")
    for line in worst:
        look = {"markersize": 15, "markeredgewidth": 2, "fillstyle": "none", "color": VERMILLION}
        axes.plot(line["error %"], order.index(line["published by"]), "o", **look)
    most = max(GOOD, *(abs(line["error %"]) for line in lines)) * 1.1
    rows(axes, order, beside=0.6)
    axes.xaxis.get_major_locator().set_params(nbins=4)
    axes.tick_params(axis="y", labelsize=SMALL)
    axes.set_xlim(-most, most)
    axes.set_xlabel("error of the prediction (%): left too fast, right too slow")
    named = "; ".join(f"{x['run']} {x['error %']:+.0f} %" for x in worst)
    note = (
        "Seconds of a step, each predicted by constants that were fitted without its run. Shaded: "
        f"within {GOOD} %. Circled, the worst: {named}."
    )
    return finish(figure, (), f"{len(lines)} published runs. {'; '.join(said)}.", (note,))
