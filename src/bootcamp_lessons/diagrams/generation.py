"""Lesson 11: what each step of a generation computes, and how long the next byte takes."""

import math

from matplotlib.figure import Figure

from bootcamp import units
from bootcamp.drawing.canvas import box, diagram, label
from bootcamp.drawing.charts import BOLD, beside, log_axis
from bootcamp.drawing.palette import INK, LIGHT, SKY, line_look
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp_lessons.generation_speed import Speed

PROMPT, TEXT = "def ", "def main"
SIDE, PITCH = 4.3, 4.8  # of a byte's square, and from one to the next


@diagram("What each step computes, without and with a cache", 4.4)
def steps(axes) -> None:
    """A row for each step of a generation behind the prompt "def ": steps 1 to 5 read 4 to 8 bytes.
    Without a cache a step computes all bytes of the text again: 4 + 5 + 6 + 7 + 8 = 30. With a
    cache the first step, the prefill, computes the 4 bytes of the prompt and keeps their keys and
    values; each later step, a decode step, computes one byte and reads the kept keys and values of
    all before it: 4 + 1 + 1 + 1 + 1 = 8.
    """
    for x, cached, name in ((9, False, "without a cache"), (62, True, "with a cache")):
        label(axes, x, 42, name, at="left", bold=True)
        computed = [_step(axes, x, row, cached) for row in range(len(TEXT) - len(PROMPT) + 1)]
        words = f"computed: {' + '.join(map(str, computed))} = {sum(computed)} bytes"
        label(axes, x, 11.5, words, at="left")
    box(axes, 9, 2.4, SIDE, SIDE, "a", colour=SKY)
    label(axes, 15, 4.7, "computed in this step", at="left")
    box(axes, 44, 2.4, SIDE, SIDE, "a", colour=LIGHT.orange, line=":")
    label(axes, 50, 4.7, "not computed: its keys and values are in the cache", at="left")


def _step(axes, x: float, row: int, cached: bool) -> int:
    """Draw one step of either way; returns how many bytes it computes."""
    y, read = 34 - 5 * row, len(PROMPT) + row
    kept = read - 1 if cached and row else 0
    name = f"step {row + 1}" if not cached else "decode" if row else "prefill"
    label(axes, x - 1.5, y + SIDE / 2, name, at="right")
    for place, letter in enumerate(TEXT[:read]):
        look = {"colour": LIGHT.orange, "line": ":"} if place < kept else {"colour": SKY}
        box(axes, x + PITCH * place, y, SIDE, SIDE, letter.replace(" ", "␣"), ink=INK, **look)
    return read - kept


def _powers(values: list[float]) -> range:
    """The powers of ten from the one below the smallest value to the one above the largest."""
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


@styled
def seconds_by_length(speed: Speed) -> Figure:
    """Time for the next byte against the length of the text before it, without and with a cache."""
    figure, axes = begin("Time for the next byte, by the length of the text before it", 5.0)
    axes.grid(axis="y")
    lengths, says, drawn = [row["length"] for row in speed.rows], [], []
    for number, (key, name) in enumerate(
        (
            ("again_seconds", "without a cache: all of it is read again"),
            ("decode_seconds", "with a cache"),
        )
    ):
        values = [1e3 * row[key] for row in speed.rows]
        axes.plot(lengths, values, label=name, **line_look(number))
        drawn += values
        beside(axes, lengths[-1], values[-1], units.time(values[-1] / 1e3), **BOLD)
        said = (f"{n}: {units.time(v / 1e3)}" for n, v in zip(lengths, values, strict=True))
        says.append(f"{name}, by bytes of text: {', '.join(said)}.")
    log_axis(axes.xaxis, lengths, base=2)
    log_axis(axes.yaxis, [10.0**power for power in _powers(drawn)])
    axes.set(xlabel="bytes of text before it", ylabel="ms for the next byte")
    legend(figure, axes.get_lines())
    again, decode = (speed.rows[-1][key] for key in ("again_seconds", "decode_seconds"))
    says.append(f"At {lengths[-1]:,} bytes that is {again / decode:.0f} times as long without.")
    note = f"GPT {speed.config['size']} with room for {lengths[-1]:,} bytes; fastest of some calls."
    return finish(figure, [speed], " ".join(says), (note,))
