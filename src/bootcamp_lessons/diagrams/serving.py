"""Lesson 11: the path to an answer, loads, the gain of batching, and the KV cache."""

import math

from matplotlib.figure import Figure

from bootcamp import units
from bootcamp.drawing.canvas import arrow, arrows, box, boxes, diagram, label
from bootcamp.drawing.charts import BOLD, bar, beside, handles, log_axis, rows
from bootcamp.drawing.palette import BLUE, COLOURS, GREY, INK, LIGHT, SKY, VERMILLION, line_look
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled

PERCENTILES = (50, 95, 99)
PROMPT, TEXT = "def ", "def main"  # of a generation
SIDE, PITCH = 4.3, 4.8  # of a byte's square, and from one to the next


@diagram("From four ranks to an answer", 4.2)
def path_to_answer(axes) -> None:
    """A training on four ranks has saved a checkpoint in four parts. It is consolidated into one
    file with the parameters, and exported to a file that needs no model code. A server loads
    that file into two instances, processes with a model each. Requests wait in one queue; those
    that wait together become one batch, and go to the instance that is free.
    """
    label(axes, 0, 39.5, "once, after training", at="left", bold=True)
    for rank in range(4):
        box(axes, 0, 33 - 3.6 * rank, 15, 3, f"part of rank {rank}", colour=LIGHT.blue, size=FOOT)
    parameters = (32, 21, "one file\nof parameters\nsafetensors", LIGHT.blue)
    exported = (72, 21, "exported model\nmodel code not needed\nONNX, .pt2", LIGHT.green)
    boxes(axes, 23, 12, parameters, exported)
    arrow(axes, (15.7, 29), (31.3, 29), "consolidate")
    arrow(axes, (53.7, 29), (71.3, 29), "export")
    label(axes, 0, 18, "for every request", at="left", bold=True)
    for y in (11, 7, 3):
        box(axes, 0, y, 12, 3, "request", colour="white", size=FOOT)
        arrow(axes, (12.5, y + 1.5), (24.5, 8.5), linewidth=1.5)
    box(axes, 25, 3.5, 19, 10, "queue\nrefuses when\nit is full", colour=LIGHT.orange, size=FOOT)
    arrow(axes, (44.7, 8.5), (59.3, 8.5), "a batch")
    for number, y in enumerate((10, 2)):
        instance = f"instance {number}\none core or one GPU"
        box(axes, 72, y, 21, 6.5, instance, colour=LIGHT.green, size=FOOT)
    box(axes, 60, 4, 4.5, 9, "", colour=LIGHT.orange)
    arrows(axes, (65, 9.5, 71.3, 12.5), (65, 7.5, 71.3, 5.5))


@diagram("Who meets the pause?", 4.0)
def pause(axes) -> None:
    """Two time lines of a server that pauses. Closed loop: one client sends a request, waits for
    its answer, sends the next. During the pause it waits for one answer and sends nothing, so one
    latency is long and all others are short. Open loop: requests are sent when they are due. All
    that are due during the pause wait, and their latencies are long, each until the pause ends.
    """
    short = (*range(12, 42, 5), *range(72, 98, 5))
    for y, name, long in (
        (22, "closed loop: the next one is sent after the answer", (42,)),
        (3, "open loop: each is sent when it is due", range(42, 72, 5)),
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
def latencies(measured, loops: dict) -> Figure:
    """Draw requests' latencies over the time when they were sent; loops: {name: Load}."""
    figure, panels = begin("Latency of each request", 4.6, ncols=len(loops), sharey=True, grid="y")
    texts, drawn = [], []
    for axes, colour, (name, found) in zip(panels, COLOURS, loops.items(), strict=False):
        times = [start - min(found.started) for start in found.started]
        latencies = [1e3 * latency for latency in found.latencies]
        p99 = units.time(found.percentile(99))
        axes.plot(times, latencies, "o", color=colour, markersize=4)
        axes.axhline(1e3 * found.percentile(99), color=colour, linestyle="--", linewidth=2)
        axes.set(title=f"{name}\np99 {p99}", xlabel="sent after, s")
        drawn += latencies
        texts.append(f"{name}: {len(latencies)} answers, p99 {p99}")
    _log_milliseconds(panels[0], drawn, "ms")
    return finish(figure, [measured], "; ".join(texts) + ".", ("Dashed: 99 of 100 are below it.",))


def _log_milliseconds(axes, values: list[float], name: str) -> None:
    """Set a logarithmic axis between the powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    log_axis(axes.yaxis, [10.0**power for power in range(low, high + 1)])
    axes.set_ylabel(name)


@styled
def knee(measured, loads: dict[float, object]) -> Figure:
    """Draw latencies and answers of an open loop; loads: {requests per second: Load}."""
    shape = {"nrows": 2, "sharex": True, "gridspec_kw": {"height_ratios": [3, 2]}}
    title = "Latency and answers by what is asked for"
    figure, (upper, lower) = begin(title, 6.4, grid="y", **shape)
    rates, texts, drawn = list(loads), [], []
    for number, percent in enumerate(PERCENTILES):
        seconds = [load.percentile(percent) for load in loads.values()]
        values = [1e3 * value for value in seconds]
        upper.plot(rates, values, label=f"p{percent}", **line_look(number))
        drawn += values
        texts.append(f"p{percent} " + ", ".join(map(units.time, seconds)))
    answered = [load.per_second for load in loads.values()]
    lower.plot(rates, rates, color=GREY, linestyle="--", label="asked for")
    lower.plot(rates, answered, label="answered", **line_look(3))
    _log_milliseconds(upper, drawn, "latency, ms")
    lower.set(xlabel="requests per second that are asked for", ylabel="answers/s")
    lower.set_ylim(0)
    legend(figure, [*upper.get_lines(), *lower.get_lines()])
    texts.append("answered " + ", ".join(f"{value:.0f}" for value in answered))
    asked = ", ".join(f"{rate:.0f}" for rate in rates)
    return finish(figure, [measured], f"At {asked} requests/s: {'; '.join(texts)}.")


@styled
def ablation(measured, found: list[dict]) -> Figure:
    """Draw the answers/s of rows with `server`, `batches` (are requests joined?), `answers/s`."""
    figure, axes = begin("What each part of the server gives", 1.6 + 0.62 * len(found), grid="x")
    looks = {"one by one": (SKY, ""), "in batches": (BLUE, "//")}
    for number, row in enumerate(found):
        bar(axes, number, row["answers/s"], looks["in batches" if row["batches"] else "one by one"])
        beside(axes, row["answers/s"], number, f"{row['answers/s']:,.0f}", right=6, **BOLD)
    rows(axes, [row["server"] for row in found])
    axes.set_xlim(0, 1.15 * max(row["answers/s"] for row in found))
    axes.set_xlabel("answers per second")
    legend(figure, handles(looks))
    texts = "; ".join(f"{row['server']}: {row['answers/s']:,.0f}" for row in found)
    return finish(figure, [measured], f"Answers per second: {texts}.")


@diagram("What each step computes, without and with a cache", 4.4)
def cached_steps(axes) -> None:
    """A row for each step of a generation behind the prompt "def ": steps 1 to 5 read 4 to 8 bytes.
    Without a cache a step computes all bytes again: 4 + 5 + 6 + 7 + 8 = 30. With a cache the first
    step, the prefill, computes the 4 bytes of the prompt and keeps their keys and values; each
    later step, a decode step, computes one byte and reads what is kept: 4 + 1 + 1 + 1 + 1 = 8.
    """
    for x, cached, name in ((9, False, "without a cache"), (62, True, "with a cache")):
        label(axes, x, 42, name, at="left", bold=True)
        computed = [_draw_step(axes, x, row, cached) for row in range(len(TEXT) - len(PROMPT) + 1)]
        words = f"computed: {' + '.join(map(str, computed))} = {sum(computed)} bytes"
        label(axes, x, 11.5, words, at="left")
    box(axes, 9, 2.4, SIDE, SIDE, "a", colour=SKY)
    label(axes, 15, 4.7, "computed in this step", at="left")
    box(axes, 44, 2.4, SIDE, SIDE, "a", colour=LIGHT.orange, line=":")
    label(axes, 50, 4.7, "not computed: its keys and values are in the cache", at="left")


def _draw_step(axes, x: float, row: int, cached: bool) -> int:
    """Draw one step, and return how many bytes it computes."""
    y, read = 34 - 5 * row, len(PROMPT) + row
    kept = read - 1 if cached and row else 0
    name = f"step {row + 1}" if not cached else "decode" if row else "prefill"
    label(axes, x - 1.5, y + SIDE / 2, name, at="right")
    for place, letter in enumerate(TEXT[:read]):
        look = {"colour": LIGHT.orange, "line": ":"} if place < kept else {"colour": SKY}
        box(axes, x + PITCH * place, y, SIDE, SIDE, letter.replace(" ", "␣"), ink=INK, **look)
    return read - kept


@styled
def seconds_by_length(speed) -> Figure:
    """Draw a generation.Speed: the time for the next byte over the length of the text."""
    figure, axes = begin("Time for the next byte, by the length of the text before it", grid="y")
    lengths, says, drawn = [row["length"] for row in speed.rows], [], []
    ways = {"again_seconds": "without a cache: all of it is read again"}
    ways["decode_seconds"] = "with a cache"
    for number, (key, name) in enumerate(ways.items()):
        seconds = [row[key] for row in speed.rows]
        values = [1e3 * value for value in seconds]
        axes.plot(lengths, values, label=name, **line_look(number))
        beside(axes, lengths[-1], values[-1], units.time(seconds[-1]), **BOLD)
        drawn += values
        texts = (f"{n}: {units.time(s)}" for n, s in zip(lengths, seconds, strict=True))
        says.append(f"{name}, by bytes of text: {', '.join(texts)}.")
    log_axis(axes.xaxis, lengths, base=2)
    _log_milliseconds(axes, drawn, "ms for the next byte")
    axes.set_xlabel("bytes of text before it")
    legend(figure, axes.get_lines())
    times = speed.rows[-1]["again_seconds"] / speed.rows[-1]["decode_seconds"]
    says.append(f"At {lengths[-1]:,} bytes that is {times:.0f} times as long without.")
    note = f"GPT tiny with room for {lengths[-1]:,} bytes; fastest of some calls."
    return finish(figure, [speed], " ".join(says), (note,))
