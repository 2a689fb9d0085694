"""Plans and their predicted speed: all of a cluster, one at each size, and published runs."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import beside, handles, log_axis
from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PINK,
    PURPLE,
    SKY,
    VERMILLION,
    line_look,
)
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled

NOT_MEASURED = ("By the planner's formulas, nothing here is measured.",)
STEP = {
    "compute": (SKY, ""),
    "host": (PURPLE, ".."),
    "tensor": (ORANGE, "//"),
    "context": (PINK, "//"),
    "expert": (GREEN, "//"),
    "data": (VERMILLION, "\\\\"),
    "pipeline": (BLUE, "xx"),
    "bubble": (LIGHT.red, ""),
    "optimizer": (GREY, ""),
}
WORDS = {
    "compute": "computes",
    "host": "waits for launches",
    "tensor": "waits: tensor",
    "context": "waits: context",
    "expert": "waits: expert",
    "data": "waits: data",
    "pipeline": "waits: pipeline",
    "bubble": "bubble",
    "optimizer": "optimizer",
}


@styled
def feasible_plans(table, chosen: dict | None = None) -> Figure:
    """Every plan by the memory that it needs and its speed; colours and marks: what limits it.

    table: rows of planning.plans_of. chosen: a row of it that is marked, such as the reader's.
    """
    lines = list(table)
    figure, axes = begin("Predicted: which plans fit, and how fast they are", 6.0)
    limits = list(dict.fromkeys(line["limit"].partition(":")[0] for line in lines))
    for number, limit in enumerate(limits):
        own = [line for line in lines if line["limit"].startswith(limit)]
        x, y = ([line[name] for line in own] for name in ("peak_gb", "tokens_per_second_per_gpu"))
        axes.plot(x, y, linestyle="", label=limit, **line_look(number))
    axes.axvline(lines[0]["gpu_gb"], color=BLACK, linestyle="--")
    fitting = [line for line in lines if line["fits"]]
    for line, words in ((max(fitting, key=_speed) if fitting else None, "best"), (chosen, "yours")):
        if line:
            beside(axes, line["peak_gb"], line["tokens_per_second_per_gpu"], words)
    log_axis(axes.xaxis, (10, 20, 40, 80, 160, 320, 640))
    axes.set(xlabel="GB that the fullest GPU needs", ylabel="tokens/s of a GPU")
    legend(figure, axes.get_lines()[: len(limits)])
    return finish(figure, (), f"{len(lines)} plans, {len(fitting)} fit.", NOT_MEASURED)


def _speed(line: dict) -> float:
    return line["tokens_per_second_per_gpu"]


@styled
def what_breaks(table) -> Figure:
    """Shares of a step at each number of GPUs, and tokens/s of a GPU, where limits set in marked.

    table: rows of planning.grown.
    """
    lines = list(table)
    figure, (top, axes) = begin("Predicted: what breaks as GPUs are added", 7.0, nrows=2)
    known = [line for line in lines if line["shares"]]
    numbers = range(len(lines))
    speeds = [line["tokens_per_second_per_gpu"] for line in lines]
    top.plot(numbers, [float("nan") if s is None else s for s in speeds], **line_look(0))
    top.set_ylabel("tokens/s of a GPU")
    parts = [part for part in STEP if any(line["shares"][part] > 0.001 for line in known)]
    for number, line in enumerate(lines):
        below = 0.0
        for part in parts if line["shares"] else ():
            share = 100 * line["shares"][part]
            colour, hatch = STEP[part]
            axes.bar(number, share, bottom=below, color=colour, hatch=hatch, edgecolor=BLACK)
            below += share
    axes.set_xticks(numbers, [f"{line['GPUs']:,}" for line in lines], fontsize=SMALL)
    top.set_xticks([])
    axes.set(xlabel="GPUs", ylabel="% of the step")
    legend(figure, handles({WORDS[part]: STEP[part] for part in parts}))
    return finish(figure, (), "Shares of a step.", NOT_MEASURED)


@styled
def predicted_and_published(table) -> Figure:
    """Predicted over published seconds of each run, with the error in %.

    table: rows of planning.published_beside_predicted.
    """
    lines = list(table)
    figure, axes = begin("How wrong the planner is on published runs", 6.0)
    for number, name in enumerate(dict.fromkeys(line["table"] for line in lines)):
        own = [line for line in lines if line["table"] == name]
        x, y = [line["published_seconds"] for line in own], [line["error %"] for line in own]
        axes.plot(x, y, linestyle="", label=name, **line_look(number))
    axes.axhline(0, color=BLACK, linewidth=1)
    log_axis(axes.xaxis, (0.01, 0.1, 1, 10, 100))
    axes.set(xlabel="published seconds of a step", ylabel="error of the prediction (%)")
    legend(figure, axes.get_lines()[:-1])
    return finish(figure, (), f"{len(lines)} published runs.", ())
