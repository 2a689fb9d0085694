"""How often to save a checkpoint: the time that saves and failures cost, by the interval."""

import numpy as np
from matplotlib.figure import Figure

from bootcamp.costs import failures
from bootcamp.drawing.charts import log_axis
from bootcamp.drawing.palette import GREY, line_look
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp.units import three_digits

TIMES = {10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 360_000: "100 h"}
TIMES |= {3_600_000: "1,000 h"}
LOST = (0.01, 0.1, 1, 2, 5, 10, 20, 50, 100)  # %
DALY = (
    "By the model of Daly (2006), nothing here is measured: failures come at random, in saves and "
    "restarts too; what was not saved is trained again. Marks: the best interval."
)


@styled
def checkpoint_interval(table) -> Figure:
    """Draw the time lost by the interval between saves: forecasts.checkpoint_intervals."""
    figure, axes = begin("Time lost to saves and failures", 6.0)
    says = []
    for position, line in enumerate(table):
        given = (line["save_seconds"], line["between_failures_seconds"], line["restart_seconds"])
        best, look = line["best_interval_seconds"], line_look(position)
        intervals = best * np.geomspace(0.1, 10, 41)
        lost = [100 * (1 - failures.effective_share(each, *given)) for each in intervals]
        words = f"{line['GPUs']:,} GPUs, a failure in {_format_seconds(given[1])}: "
        words += f"save every {_format_seconds(best)}, {min(lost):.2g} % lost"
        axes.plot(intervals, lost, color=look["color"], label=words)
        axes.plot(best, min(lost), **look)
        says.append(words)
    log_axis(axes.xaxis, TIMES, TIMES.values())
    log_axis(axes.yaxis, LOST)
    axes.set(xlim=axes.dataLim.intervalx, ylim=(0.8 * axes.dataLim.y0, 100))
    axes.set(xlabel="training between two saves", ylabel="% of the time lost")
    axes.grid(True, color=GREY)
    legend(figure, axes.get_lines()[::2])
    takes = f"A save takes {_format_seconds(given[0])}, a restart {_format_seconds(given[2])}."
    notes = (DALY, f"{takes} {table.caption}.")
    return finish(figure, (), f"{'; '.join(says)}. {takes}", notes)


def _format_seconds(seconds: float) -> str:
    """Write a time with two digits: 45 s, 19 min, 3.1 h."""
    large, unit = 3600, "h"
    if seconds < 90:
        large, unit = 1, "s"
    elif seconds < 5400:
        large, unit = 60, "min"
    return f"{three_digits(float(f'{seconds / large:.2g}'))} {unit}"
