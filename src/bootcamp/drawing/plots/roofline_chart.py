"""A device's roofline, and the operations of a model under it."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bootcamp.drawing.charts import BOLD
from bootcamp.drawing.palette import BLACK, INK, ORANGE, PALE, PAPER, SKY
from bootcamp.drawing.style import SMALL, begin, device_word, finish, styled
from bootcamp.units import flops, size


@styled
def roofline(measured) -> Figure:
    """FLOP/s by arithmetic intensity on log axes: the device's roof, the operations under it.

    measured: a roofline.Roofline. An operation whose operands fit into the last cache is a hollow
    marker: for it the slanted part of the roof, memory, is no limit.
    """
    figure, axes = begin("What limits each operation: memory or arithmetic?", 7.0)
    points = sorted(measured.operations, key=lambda row: -row["achieved_flops_per_second"])
    _draw_roof(axes, measured)
    colour = SKY if device_word(measured) == "CPU" else ORANGE
    for row in points:
        look = {"markerfacecolor": "white" if row["fits_in_cache"] else colour, "zorder": 4}
        look |= {"markeredgecolor": colour if row["fits_in_cache"] else INK, "markeredgewidth": 2}
        axes.plot(row["intensity"], row["achieved_flops_per_second"], marker="o", **look)
    reached = [r["achieved_flops_per_second"] / measured.roof(r["intensity"]) for r in points]
    shares = [f"{r['name']} {100 * of:.0f} %" for r, of in zip(points, reached, strict=True)]
    says = (
        f"Roof: {flops(measured.peak_flops_per_second)} and "
        f"{size(measured.bandwidth_bytes_per_second)}/s, which meet at {measured.ridge:.1f} "
        f"operations per byte. Reached of the roof: {'; '.join(shares)}."
    )
    finish(figure, [measured], says, _roofline_notes(measured))
    _label_points(figure, axes, measured, dict(zip(shares, points, strict=True)))
    return figure


def _roofline_notes(measured) -> tuple[str, ...]:
    config = measured.config
    work = (
        f"GPT {config['size']}, {config['global_batch']} samples, {config['dtype']}. Per cent: of "
        "the roof above the point. Bytes: every operand read once, every result written once."
    )
    hollow = (
        "Hollow: all bytes fit in the last cache "
        f"({size(measured.cache_bytes or 0)}), so memory is no limit and 100 % can be passed."
    )
    return (work, hollow) if any(row["fits_in_cache"] for row in measured.operations) else (work,)


def _draw_roof(axes, measured) -> None:
    """The roof as one line, its two parts named, with room around the operations."""
    top, ridge = measured.peak_flops_per_second, measured.ridge
    intensities = [row["intensity"] for row in measured.operations]
    reached = [row["achieved_flops_per_second"] for row in measured.operations]
    left, right = min(*intensities, ridge) / 4, max(*intensities, ridge) * 4
    left = min(left, ridge / (right / left) ** 0.25)  # the slanted part has room for its name
    bottom, highest = min(*reached, measured.roof(left)) / 2, max(*reached, top)
    ceiling = max(3 * highest, highest * (highest / bottom) ** 0.15)
    line = [left, ridge, right], [measured.roof(left), top, top]
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, ceiling))
    axes.plot(*line, color=BLACK)
    axes.fill_between(*line, bottom, color=PAPER, linewidth=0)
    axes.set_xlabel("arithmetic intensity: operations for each byte moved (FLOP/B)")
    axes.set_ylabel("operations per second (FLOP/s)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e9:,g} G")
    axes.grid()


# Where a label can be, seen from its point, in typographic points, the nearest first.
GRID = 6  # pixels between the places that are tried where these are taken
LABEL_PLACES = [(11, 0), (-11, 0), (0, -19), (0, 19)] + [
    (side * across, above * up)
    for across, up in ((11, 16), (20, 34), (30, 52), (45, 75), (60, 100))
    for above in (-1, 1)
    for side in (1, -1)
]


def _label_points(figure, axes, measured, labels: dict[str, dict]) -> None:
    """Each label beside its point, where it covers no other label, no point and not the roof."""
    figure.draw_without_rendering()  # from here on every position is known
    points = [(row["intensity"], row["achieved_flops_per_second"]) for row in labels.values()]
    taken = [_around(axes, point, 11) for point in points]
    low, high = (math.log(limit) for limit in axes.get_xlim())
    along = [math.exp(low + (high - low) * k / 400) for k in range(401)]
    taken += [_around(axes, (x, measured.roof(x)), 3) for x in along]
    _name_roof(axes, measured, along, taken)
    for label, point in zip(labels, points, strict=True):
        _place_label(axes, label, point, taken)


def _name_roof(axes, measured, along: list[float], taken: list[Bbox]) -> None:
    """Name the two parts of the roof, each above its line where there is no point."""
    flat = [x for x in along if x > measured.ridge][::-1]
    slanted = [x for x in along if x < measured.ridge]
    memory = f"memory:\n{size(measured.bandwidth_bytes_per_second)}/s"
    arithmetic = f"arithmetic: {flops(measured.peak_flops_per_second)}"
    for words, places, offset in ((arithmetic, flat, (-4, 8)), (memory, slanted, (-10, 10))):
        text = axes.annotate(words, (1, 1), offset, textcoords="offset points", ha="right")
        text.set(**BOLD, in_layout=False)
        for x in places:
            text.xy = (x, measured.roof(x))
            if _is_free(axes, box := text.get_window_extent(), taken):
                break
        else:
            box = _move(axes, text, taken)
        taken.append(box)


def _move(axes, text, taken: list[Bbox]) -> Bbox:
    """Move a text to the free place of the axes that is nearest to its point; returns its box."""
    box, frame, point = text.get_window_extent(), axes.bbox, axes.transData.transform(text.xy)
    lefts = np.arange(frame.x0, frame.x1 - box.width, GRID)
    x, y = np.meshgrid(lefts, np.arange(frame.y0, frame.y1 - box.height, GRID))
    free = np.full(x.shape, True)
    for other in taken:
        beside = (x + box.width <= other.x0) | (x >= other.x1)
        free &= beside | (y + box.height <= other.y0) | (y >= other.y1)
    middle_x, middle_y = x + box.width / 2 - point[0], y + box.height / 2 - point[1]
    place = np.where(free, np.hypot(middle_x, middle_y), np.inf).argmin()
    middle, up = middle_x.flat[place], middle_y.flat[place]  # from the point, in pixels
    side = 0 if abs(middle) < box.width / 2 else math.copysign(1, middle)
    position = np.array([middle - side * box.width / 2, up]) * 72 / axes.figure.dpi
    text.set(position=position, ha={0: "center", 1: "left", -1: "right"}[side], va="center")
    return text.get_window_extent()


def _is_free(axes, box: Bbox, taken: list[Bbox]) -> bool:
    """Whether a box is within the axes and covers nothing else."""
    frame = axes.bbox
    inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 <= box.y1 <= frame.y1
    return inside and not any(box.overlaps(other) for other in taken)


def _around(axes, point: tuple[float, float], pixels: float) -> Bbox:
    x, y = axes.transData.transform(point)
    return Bbox.from_extents(x - pixels, y - pixels, x + pixels, y + pixels)


def _place_label(axes, label: str, point: tuple[float, float], taken: list[Bbox]) -> None:
    """Write a label at the first of its places that is free, with a line to it if that is far."""
    text = axes.annotate(label, point, (0, 0), textcoords="offset points", va="center", zorder=5)
    text.set(fontsize=SMALL, in_layout=False)
    for right, up in LABEL_PLACES:
        side = "left" if right > 0 else "right" if right < 0 else "center"
        text.set(position=(right, up), ha=side)
        if _is_free(axes, box := text.get_window_extent(), taken):
            break
    else:
        box = _move(axes, text, taken)
    taken.append(box)
    right, up = text.get_position()
    if math.hypot(right, up) > 20:
        gap = 9 if text.get_ha() == "center" else 0  # such a text is around the line's end
        line = {"arrowstyle": "-", "color": PALE, "shrinkA": gap, "shrinkB": 5, "linewidth": 1}
        look = {"textcoords": "offset points", "arrowprops": line, "in_layout": False}
        axes.annotate("", point, (right, up), **look)
