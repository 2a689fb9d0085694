"""The pictures of notebook 02's second half: number formats, fp16, activations over time."""

import math

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    GREEN,
    INK,
    LIGHT_BLUE,
    LIGHT_GREEN,
    MINT,
    ORANGE,
    PALE,
    SKY,
    VERMILLION,
)
from bootcamp.drawing.style import FOOT, SMALL, begin, legend, styled

FATES = {  # of a gradient's elements in fp16: colour and hatch
    "zero": (VERMILLION, "xx"),
    "few digits": (ORANGE, "//"),
    "all digits": (MINT, ""),
    "infinite": (BLACK, ""),
}


@styled
def host_and_device() -> Figure:
    """What lies in the host's memory and in the GPU's, and what goes over the bus between them."""
    says = (
        "The host, with CPU and main memory, runs the Python script and reads the data. The "
        "device, with its own memory, holds parameters, gradients, optimizer state and "
        "activations. The model is copied to it once. In every step the batch is copied from host "
        "to device, kernels are ordered, and the loss comes back."
    )
    figure, axes = canvas("Two memories, and a bus between them", says, 3.8)
    box(axes, 1, 3, 33, 33)
    box(axes, 66, 3, 33, 33)
    label(axes, 17.5, 32.5, "host: CPU and main memory", bold=True, size=13)
    label(axes, 82.5, 32.5, "device: GPU and its memory", bold=True, size=13)
    box(axes, 4, 17, 27, 11, "the Python script\nand the record", colour=LIGHT_BLUE)
    box(axes, 4, 5.5, 27, 8, "the data", colour=LIGHT_BLUE)
    for y, text in ((23.5, "parameters"), (17.5, "gradients"), (11.5, "optimizer state")):
        box(axes, 69, y, 27, 5, text, colour=LIGHT_GREEN)
    box(axes, 69, 5.5, 27, 5, "activations", colour=LIGHT_GREEN)
    arrow(axes, (35, 29), (65, 29), "once: the model")
    arrow(axes, (35, 21.5), (65, 21.5), "each step: the batch")
    arrow(axes, (35, 14), (65, 14), "each step: orders (kernels)")
    arrow(axes, (65, 6.5), (35, 6.5), "each step: the loss", colour=VERMILLION)
    return figure


@styled
def queue() -> Figure:
    """Why a clock on the CPU tells little about a GPU: it orders now, the GPU computes later."""
    says = (
        "On the upper lane the CPU orders four kernels one after another, each in a short time, "
        "and then waits. On the lower lane the GPU computes them, each longer than its order took. "
        "A clock that is read after the last order stops too early. loss.item() waits for the GPU."
    )
    figure, axes = canvas("The CPU orders, the GPU computes later (not to scale)", says, 3.6)
    label(axes, 6, 25, "CPU", bold=True, size=14)
    label(axes, 6, 12, "GPU", bold=True, size=14)
    for number in range(4):
        order, kernel = 13 + 8 * number, 17 + 16 * number
        box(axes, order, 21.5, 7.4, 7, f"order\n{number + 1}", colour=LIGHT_BLUE, size=11)
        box(axes, kernel, 8.5, 15.4, 7, f"kernel {number + 1}", colour=LIGHT_GREEN)
        arrow(axes, (order + 3.7, 21), (kernel + 2, 16), colour=PALE)
    box(axes, 45.5, 21.5, 36, 7, "loss.item() waits", colour="white", line="--")
    for x, text, colour in (
        (45, "clock read here:\nmuch too early", VERMILLION),
        (82, "here: right", BLUE),
    ):
        axes.plot((x, x), (4.5, 31), color=colour, linestyle=":", linewidth=2.5)
        label(axes, x, 33.5 if "early" in text else 32.8, text, ink=colour)
    arrow(axes, (12, 4), (97, 4), colour=PALE)
    label(axes, 94, 1.5, "time")
    return figure


@styled
def speeds(rows: list[dict], source: str) -> Figure:
    """Arithmetic and memory bandwidth of several devices, both on logarithmic axes.

    rows: dictionaries with `device`, `flops_per_second`, `bytes_per_second`, `measured` (a bool;
    published otherwise). source: where the published values are from.
    """
    height = 2.4 + 0.6 * len(rows)
    title = "Arithmetic and memory bandwidth, device by device"
    figure, axes = begin(title, height, ncols=2, sharey=True)
    says = []
    for axis, key, unit, scale in (
        (axes[0], "flops_per_second", "TFLOP/s", 1e12),
        (axes[1], "bytes_per_second", "GB/s", 1e9),
    ):
        values = [row[key] / scale for row in rows]
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            marker, colour = ("s", BLUE) if row["measured"] else ("o", GREEN)
            axis.plot(value, place, marker, color=colour, markersize=12)
            axis.annotate(
                f"{value:,.3g}" if value < 1000 else f"{value:,.0f}",
                (value, place),
                (11, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
                fontweight="bold",
            )
            says.append(f"{row['device']} {value:,.3g} {unit}")
        lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        axis.set_xscale("log")
        axis.set_xlim(10.0**lowest / 2, 10.0**highest * 12)
        axis.set_xticks([10.0**power for power in range(lowest, highest + 1, 2)])
        axis.minorticks_off()
        axis.set_xlabel(unit)
        axis.grid()
    axes[0].set_yticks(range(len(rows)), [row["device"] for row in rows])
    axes[0].tick_params(axis="y", length=0)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    foot = (
        f"Blue square: measured here. Green circle: published peak ({source}).\n"
        "From one upright grid line to the next it is a hundred times."
    )
    figure.supxlabel(foot, x=0.012, ha="left", fontsize=11, linespacing=1.4)
    figure.alt = f"{figure.get_suptitle()}. {'; '.join(says)}. {foot}".replace("\n", " ")
    return figure


@styled
def number_formats(formats: dict[str, tuple[int, int]]) -> Figure:
    """The bits of floating-point formats: sign, exponent, fraction.

    formats: {name: (bits of the exponent, bits of the fraction)}.
    """
    words = "; ".join(
        f"{name} has {1 + sum(bits)} bits: sign 1, exponent {bits[0]}, fraction {bits[1]}"
        for name, bits in formats.items()
    )
    height = 1.0 * len(formats) + 0.5
    figure, axes = canvas("What the bits of a number are used for", f"{words}.", height)
    width = 84 / max(1 + sum(bits) for bits in formats.values())
    for row, (name, (exponent, fraction)) in enumerate(formats.items()):
        x, y = 15.0, 10 * height - 13 - 10 * row
        label(axes, 14, y + 3.5, name, at="right", bold=True)
        parts = ((1, "#DDDDDD", ""), (exponent, ORANGE, f"{exponent}"), (fraction, SKY, fraction))
        for bits, colour, text in parts:
            box(axes, x, y, bits * width - 0.4, 7, f"{text}", colour=colour, bold=True)
            x += bits * width
    for x, text in ((15.5, "sign"), (22, "exponent: the range"), (48, "fraction: the digits")):
        label(axes, x, 10 * height - 3, text, at="left")
    return figure


@styled
def fp16_fates(shares: dict[str, list[dict]], exponents: list[int], origin: str) -> Figure:
    """What share of a gradient becomes zero, loses digits or overflows in fp16, by loss scale.

    shares: {name of the gradient: one dictionary for each exponent, fate -> share, the fates of
    FATES}. exponents: the loss scales as powers of two. origin: what the foot says.
    """
    title = "A gradient times the loss scale, stored in fp16"
    figure, axes = begin(title, 5.6, ncols=len(shares), sharey=True, squeeze=False)
    says = []
    for axis, (name, rows) in zip(axes[0], shares.items(), strict=True):
        left = [0.0] * len(rows)
        for fate, (colour, hatch) in FATES.items():
            widths = [100 * row[fate] for row in rows]
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            axis.barh(range(len(rows)), widths, left=left, height=0.8, **look)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axis.set_title(name, loc="left")
        axis.set_xlabel("share of the elements, %")
        axis.set_xlim(0, 100)
        worst = max(range(len(rows)), key=lambda place, rows=rows: rows[place]["zero"])
        says.append(
            f"{name}: at a scale of 2^{exponents[worst]} {100 * rows[worst]['zero']:.0f} % become "
            f"zero, at 2^{exponents[-1]} {100 * rows[-1]['infinite']:.0f} % infinite"
        )
    axes[0][0].set_yticks(range(len(exponents)), [f"$2^{{{power}}}$" for power in exponents])
    axes[0][0].set_ylabel("loss scale")
    axes[0][0].invert_yaxis()
    legend(
        figure,
        [
            Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=fate)
            for fate, (colour, hatch) in FATES.items()
        ],
    )
    figure.supxlabel(origin, x=0.012, ha="left", fontsize=FOOT, linespacing=1.4)
    figure.alt = f"{title}. {'; '.join(says)}. {origin}"
    return figure


@styled
def held_over_a_step(blocks: int, block_bytes: float, kept_bytes: float) -> Figure:
    """The blocks' activations during one step, plain and checkpointed. By formula.

    block_bytes: what a block keeps for its backward; kept_bytes: what it keeps if checkpointed.
    A block's forward takes one unit of time, its backward two.
    """
    plain, checkpointed = (
        held(blocks, block_bytes, block_bytes),
        held(blocks, block_bytes, kept_bytes),
    )
    title = "Activations that are held during one step (by formula)"
    figure, axes = begin(title, 4.6)
    curves = (("all kept", plain, BLUE, "-"), ("inputs kept", checkpointed, GREEN, "--"))
    says = []
    for name, points, colour, line in curves:
        times, sizes = zip(*points, strict=True)
        megabytes = [size / 1e6 for size in sizes]
        axes.plot(times, megabytes, line, color=colour, label=name)
        says.append(f"{name}: at most {max(megabytes):.1f} MB, ended at {times[-1]:g}")
    axes.axvline(blocks, color=INK, linestyle=":", linewidth=1.5)
    axes.set_ylim(0, 1.22 * max(size for _, size in plain) / 1e6)
    for x, text, at in ((-0.15, "forward ", "right"), (0.15, " backward", "left")):
        axes.annotate(text, (blocks + x, 1.13 * max(size for _, size in plain) / 1e6), ha=at)
    axes.set_xlabel("time (one unit: the forward of one block)")
    axes.set_ylabel("MB in the blocks")
    axes.grid(axis="y")
    axes.legend(loc="center right")
    figure.alt = f"{title}, {blocks} blocks. {'; '.join(says)}."
    return figure


def held(blocks: int, block_bytes: float, kept_bytes: float) -> list[tuple[float, float]]:
    """(time, bytes) at each turn of the staircase; a block that kept less is computed again."""
    time, size = 0.0, 0.0
    points = [(time, size)]
    for _ in range(blocks):
        time += 1
        points += [(time, size), (time, size + kept_bytes)]
        size += kept_bytes
    for _ in range(blocks):
        if kept_bytes < block_bytes:
            time += 1  # the forward again, from the block's input
            points += [(time, size), (time, size + block_bytes - kept_bytes)]
            size += block_bytes - kept_bytes
        time += 2
        points += [(time, size), (time, size - block_bytes)]
        size -= block_bytes
    return points
