"""Figures of predictions: how wrong predictions are of published runs, and how often to save."""

from statistics import median

from matplotlib.figure import Figure

from bootcamp.costs import failures
from bootcamp.drawing.charts import log_axis, margin, rows
from bootcamp.drawing.palette import BLACK, BLUE, GREY, LIGHT, VERMILLION, line_look
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.units import three_digits

GOOD = 5  # % of error: what the shaded band shows
NAMED = 3  # of the worst
TIMES = {10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 360_000: "100 h"}
TIMES |= {3_600_000: "1,000 h"}
LOST = (0.01, 0.1, 1, 2, 5, 10, 20, 50, 100)  # %
DALY = (
    "By the model of Daly (2006), nothing here is measured: failures come at random, in saves and "
    "restarts too; what was not saved is trained again. Marks: the best interval."
)


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
    says = []
    for row, name in enumerate(order):
        errors = [line["error %"] for line in groups[name]]
        axes.plot(errors, [row] * len(errors), "o", color=BLUE, alpha=0.6, markersize=8)
        sizes = [abs(error) for error in errors]
        words = f"{len(errors)} runs: median {median(sizes):.1f} %, worst {max(sizes):.0f} %"
        margin(axes, row, words, x=1.015)
        says.append(f"{name}: {words}")
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
    return finish(figure, (), f"{len(lines)} published runs. {'; '.join(says)}.", (note,))


@styled
def checkpoint_interval(table) -> Figure:
    """A curve for each cluster: share of the time that is lost, by the interval between saves.

    table: rows of planning.checkpoint_intervals, all with the same seconds of a save and a restart.
    """
    figure, axes = begin("Time lost to saves and failures", 6.0)
    says, reached, ends = [], [], []
    for number, line in enumerate(table):
        given = (line["save_seconds"], line["between_failures_seconds"], line["restart_seconds"])
        best = line["best_interval_seconds"]
        intervals = [best * 10 ** (k / 20 - 1) for k in range(41)]
        lost = [100 * (1 - failures.effective_share(each, *given)) for each in intervals]
        lowest = 100 * (1 - failures.effective_share(best, *given))
        look = line_look(number)
        words = f"{line['GPUs']:,} GPUs, a failure in {_about(given[1])}: "
        words += f"save every {_about(best)}, {lowest:.2g} % lost"
        axes.plot(intervals, lost, color=look["color"], label=words)
        axes.plot(best, lowest, **look)
        says.append(words)
        reached += [lowest, *lost]
        ends += [intervals[0], intervals[-1]]
    axes.set(xlim=(min(ends), max(ends)), ylim=(0.8 * min(reached), 100))
    log_axis(axes.yaxis, [tick for tick in LOST if tick >= 0.8 * min(reached)])
    seen = {tick: words for tick, words in TIMES.items() if min(ends) <= tick <= max(ends)}
    log_axis(axes.xaxis, seen, seen.values())
    axes.set(xlabel="training between two saves", ylabel="% of the time lost")
    axes.grid(True, color=GREY)
    legend(figure, axes.get_lines()[::2])
    takes = f"A save takes {_about(given[0])}, a restart {_about(given[2])}."
    words = getattr(table, "caption", "")
    notes = (DALY, f"{takes} {words}." if words else takes)
    return finish(figure, (), f"{'; '.join(says)}. {takes}", notes)


def _about(seconds: float) -> str:
    """A time with two digits: 45 s, 19 min, 3.1 h."""
    large, unit = 1, "s"
    for size, name in ((60, "min"), (3600, "h")):
        if seconds >= 1.5 * size:
            large, unit = size, name
    return f"{three_digits(float(f'{seconds / large:.2g}'))} {unit}"
