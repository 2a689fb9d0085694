"""Time lost to saves and failures by the interval between saves, and the best interval."""

from matplotlib.figure import Figure

from bootcamp.costs import failures
from bootcamp.drawing.charts import log_axis
from bootcamp.drawing.palette import GREY, line_look
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp.units import three_digits

TIMES = {10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 360_000: "100 h"}
TIMES |= {3_600_000: "1,000 h"}
LOST = (0.01, 0.1, 1, 2, 5, 10, 20, 50, 100)  # %
NOTE = (
    "By the model of Daly (2006), nothing here is measured: failures come at random, in saves and "
    "restarts too; what was not saved is trained again. Marks: the best interval."
)


@styled
def checkpoint_interval(table) -> Figure:
    """A curve for each cluster: share of the time that is lost, by the interval between saves.

    table: rows of planning.checkpoint_intervals, all with the same seconds of a save and a restart.
    """
    figure, axes = begin("Time lost to saves and failures", 6.0)
    said, reached, ends = [], [], []
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
        said.append(words)
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
    notes = (NOTE, f"{takes} {words}." if words else takes)
    return finish(figure, (), f"{'; '.join(said)}. {takes}", notes)


def _about(seconds: float) -> str:
    """A time with two digits: 45 s, 19 min, 3.1 h."""
    large, unit = 1, "s"
    for size, name in ((60, "min"), (3600, "h")):
        if seconds >= 1.5 * size:
            large, unit = size, name
    return f"{three_digits(float(f'{seconds / large:.2g}'))} {unit}"
