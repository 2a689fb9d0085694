"""The pictures of notebook 02's second half: number formats, fp16, activations over time."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import box, canvas, label
from bootcamp.drawing.style import (
    BLACK,
    BLUE,
    FOOT,
    GREEN,
    INK,
    ORANGE,
    SKY,
    VERMILLION,
    begin,
    styled,
)
from bootcamp.drawing.style import legend as name_handles

FATES = {  # of a gradient's elements in fp16: colour and hatch
    "zero": (VERMILLION, "xx"),
    "few digits": (ORANGE, "//"),
    "all digits": ("#8FD1B8", ""),
    "infinite": (BLACK, ""),
}


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
    name_handles(
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
