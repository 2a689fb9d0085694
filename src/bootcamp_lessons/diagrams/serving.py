"""Lesson 11: a model's way to its answers, what a load measures, and what batching gives."""

import math

from matplotlib.figure import Figure

from bootcamp import units
from bootcamp.drawing.canvas import arrow, arrows, box, diagram, label
from bootcamp.drawing.charts import BOLD, bar, beside, handles, log_axis, rows
from bootcamp.drawing.palette import BLUE, COLOURS, GREY, LIGHT, SKY, VERMILLION, line_look
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled

PERCENTILES = (50, 95, 99)


@diagram("From four ranks to an answer", 4.2)
def way(axes) -> None:
    """A training on four ranks has saved a checkpoint in four parts. It is consolidated into one
    file with the parameters, and exported to a file that needs no model code. A server loads
    that file into two instances, processes with a model each. Requests wait in one queue; those
    that wait together become one batch, and go to the instance that is free.
    """
    label(axes, 0, 39.5, "once, after training", at="left", bold=True)
    for number in range(4):
        box(
            axes,
            0,
            33 - 3.6 * number,
            15,
            3,
            f"part of rank {number}",
            colour=LIGHT.blue,
            size=FOOT,
        )
    box(axes, 32, 23, 21, 12, "one file\nof parameters\nsafetensors", colour=LIGHT.blue)
    box(
        axes,
        72,
        23,
        21,
        12,
        "exported model\nmodel code not needed\nONNX, .pt2",
        colour=LIGHT.green,
    )
    arrow(axes, (15.7, 29), (31.3, 29), "consolidate")
    arrow(axes, (53.7, 29), (71.3, 29), "export")
    label(axes, 0, 18, "for every request", at="left", bold=True)
    for number in range(3):
        box(axes, 0, 11 - 4 * number, 12, 3, "request", colour="white", size=FOOT)
    arrows(axes, *((12.5, 12.5 - 4 * n, 24.5, 8.5) for n in range(3)), linewidth=1.5)
    box(axes, 25, 3.5, 19, 10, "queue\nrefuses when\nit is full", colour=LIGHT.orange, size=FOOT)
    arrow(axes, (44.7, 8.5), (59.3, 8.5), "a batch")
    for number in range(2):
        box(
            axes,
            72,
            10 - 8 * number,
            21,
            6.5,
            f"instance {number}\none core or one GPU",
            size=FOOT,
            colour=LIGHT.green,
        )
    box(axes, 60, 4, 4.5, 9, "", colour=LIGHT.orange)
    arrows(axes, (65, 9.5, 71.3, 12.5), (65, 7.5, 71.3, 5.5))


@diagram("Who meets the pause?", 4.0)
def pause(axes) -> None:
    """Two time lines of a server that pauses. Closed loop: one client sends a request, waits for
    its answer, sends the next. During the pause it waits for one answer and sends nothing, so one
    latency is long and all others are short. Open loop: requests are sent when they are due. All
    that are due during the pause wait, and their latencies are long, each until the pause ends.
    """
    for y, name, short, long in (
        (
            22,
            "closed loop: the next one is sent after the answer",
            (*range(12, 42, 5), *range(72, 98, 5)),
            (42,),
        ),
        (
            3,
            "open loop: each is sent when it is due",
            (*range(12, 42, 5), *range(72, 98, 5)),
            range(42, 72, 5),
        ),
    ):
        label(axes, 0, y + 15, name, at="left", bold=True)
        box(axes, 42, y - 1, 29, 13.5, "", colour=GREY)
        for number, x in enumerate(short):
            box(axes, x, y + 2 * (number % 2), 2.6, 1.6, "", colour=SKY)
        for number, x in enumerate(long):
            box(axes, x, y + 1.9 * number, 71.4 - x, 1.6, "", colour=VERMILLION)
    label(axes, 56.5, 32.5, "the server pauses", size=FOOT)
    label(axes, 0, 27, "a request\nuntil its\nanswer", at="left", size=FOOT)


@styled
def met_by(measured, loops: dict) -> Figure:
    """Draw the latency of each request by the time when it was sent; loops: {name: Load}."""
    figure, panels = begin("Latency of each request", 4.6, ncols=len(loops), sharey=True, grid="y")
    said = []
    for number, (axes, (name, found)) in enumerate(zip(panels, loops.items(), strict=True)):
        began = min(found.started)
        times = [start - began for start in found.started]
        colour = COLOURS[number]
        axes.plot(times, [1e3 * s for s in found.latencies], "o", color=colour, markersize=4)
        p99 = 1e3 * found.percentile(99)
        axes.axhline(p99, color=colour, linestyle="--", linewidth=2)
        axes.set(title=f"{name}\np99 {units.time(p99 / 1e3)}", xlabel="sent after, s")
        said.append(f"{name}: {len(found.latencies)} answers, p99 {units.time(p99 / 1e3)}")
    low = min(min(found.latencies) for found in loops.values())
    high = max(max(found.latencies) for found in loops.values())
    ticks = [10.0**power for power in _powers(1e3 * low, 1e3 * high)]
    log_axis(panels[0].yaxis, ticks)
    panels[0].set_ylabel("ms")
    return finish(figure, [measured], "; ".join(said) + ".", ("Dashed: 99 of 100 are below it.",))


def _powers(low: float, high: float) -> range:
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


@styled
def knee(measured, loads: dict[float, object]) -> Figure:
    """Draw latencies and answers of an open loop; loads: {requests per second: Load}."""
    sizes = {"height_ratios": [3, 2]}
    figure, (upper, lower) = begin(
        "Latency and answers by what is asked for",
        6.4,
        nrows=2,
        sharex=True,
        gridspec_kw=sizes,
        grid="y",
    )
    rates, said, drawn = list(loads), [], []
    for number, percent in enumerate(PERCENTILES):
        values = [1e3 * loads[rate].percentile(percent) for rate in rates]
        drawn += values
        upper.plot(rates, values, label=f"p{percent}", **line_look(number))
        said.append(f"p{percent} " + ", ".join(f"{units.time(v / 1e3)}" for v in values))
    answered = [loads[rate].per_second for rate in rates]
    lower.plot(rates, rates, color=GREY, linestyle="--", label="asked for")
    lower.plot(rates, answered, label="answered", **line_look(3))
    log_axis(upper.yaxis, [10.0**power for power in _powers(min(drawn), max(drawn))])
    upper.set_ylabel("latency, ms")
    lower.set(xlabel="requests per second that are asked for", ylabel="answers/s")
    lower.set_ylim(0)
    legend(figure, [*upper.get_lines(), *lower.get_lines()])
    said.append("answered " + ", ".join(f"{value:.0f}" for value in answered))
    rates_said = ", ".join(f"{rate:.0f}" for rate in rates)
    return finish(figure, [measured], f"At {rates_said} requests/s: {'; '.join(said)}.")


@styled
def ablation(measured, found: list[dict]) -> Figure:
    """Draw rows of `server`, `batches` (whether requests are joined) and `answers/s`."""
    figure, axes = begin("What each part of the server gives", 1.6 + 0.62 * len(found), grid="x")
    looks = {"one by one": (SKY, ""), "in batches": (BLUE, "//")}
    for number, row in enumerate(found):
        bar(axes, number, row["answers/s"], looks["in batches" if row["batches"] else "one by one"])
        beside(axes, row["answers/s"], number, f"{row['answers/s']:,.0f}", right=6, **BOLD)
    rows(axes, [row["server"] for row in found])
    axes.set_xlim(0, 1.15 * max(row["answers/s"] for row in found))
    axes.set_xlabel("answers per second")
    legend(figure, handles(looks))
    said = "; ".join(f"{row['server']}: {row['answers/s']:,.0f}" for row in found)
    return finish(figure, [measured], f"Answers per second: {said}.")
