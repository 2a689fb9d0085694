"""Time lost to saves and failures by the interval between saves, and the best interval."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import log_axis
from bootcamp.drawing.palette import GREY, line_look
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp.theory import failures


@styled
def checkpoint_interval(table) -> Figure:
    """A curve for each cluster: share of the time that is lost, by minutes between saves.

    table: rows of planning.checkpoint_intervals. Marks stand at Daly's best interval.
    """
    figure, axes = begin("Time lost to saves and failures", 5.4)
    said = []
    for number, line in enumerate(table):
        given = (line["save_seconds"], line["between_failures_seconds"], line["restart_seconds"])
        best = line["best_interval_seconds"]
        intervals = [best * 10 ** (k / 20 - 1) for k in range(41)]
        lost = [100 * (1 - failures.effective_share(each, *given)) for each in intervals]
        lowest = 100 * (1 - failures.effective_share(best, *given))
        look = line_look(number)
        words = f"{line['GPUs']:,} GPUs"
        axes.plot([each / 60 for each in intervals], lost, color=look["color"], label=words)
        axes.plot(best / 60, lowest, **look)
        said.append(f"{words}: every {best / 60:.1f} minutes, {lowest:.1f} % lost")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    log_axis(axes.yaxis, (1, 2, 5, 10, 20, 50, 100))
    axes.set(xlabel="minutes between saves", ylabel="% of the time lost", ylim=(1, 100))
    axes.grid(True, color=GREY)
    legend(figure, axes.get_lines()[::2])
    return finish(figure, (), f"{'; '.join(said)}.", ("By Daly's model (2006); not measured.",))
