"""A device's roofline, and the operations of a model under it."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bootcamp.drawing.charts import BOLD
from bootcamp.drawing.palette import BLACK, INK, ORANGE, PALE, PAPER, SKY
from bootcamp.drawing.style import SMALL, begin, device_word, finish, styled
from bootcamp.units import flops, size

GRID = 6  # pixels between the places that are tried for a label


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


def _label_points(figure, axes, measured, labels: dict[str, dict]) -> None:
    figure.draw_without_rendering()  # from here on every position is known
    points = [(row["intensity"], row["achieved_flops_per_second"]) for row in labels.values()]
    taken = [_around(axes, point, 11) for point in points]
    roof = [(x, measured.roof(x)) for x in np.geomspace(*axes.get_xlim(), 401)]
    taken += [_around(axes, point, 3) for point in roof]
    slanted = [point for point in roof if point[0] < measured.ridge]
    arithmetic = f"arithmetic: {flops(measured.peak_flops_per_second)}"
    memory = f"memory:\n{size(measured.bandwidth_bytes_per_second)}/s"
    for words, end in ((arithmetic, roof[-1]), (memory, slanted[len(slanted) // 2])):
        _place(axes, words, end, taken, lambda x, y, _: np.hypot(x[1] + 8, y[0] - 8), **BOLD)
    for label, point in zip(labels, points, strict=True):
        text = _place(axes, label, point, taken, _beside, fontsize=SMALL)
        right, up = text.get_position()
        if math.hypot(right, up) > 20:
            gap = 9 if text.get_ha() == "center" else 0  # such a text is around the line's end
            line = {"arrowstyle": "-", "color": PALE, "shrinkA": gap, "shrinkB": 5, "linewidth": 1}
            look = {"textcoords": "offset points", "arrowprops": line, "in_layout": False}
            axes.annotate("", point, (right, up), **look)


def _beside(x: tuple, y: tuple, height: float) -> np.ndarray:
    """How far a box is from its point; best is right of it, at the same height."""
    gaps = [np.maximum(0, np.maximum(low, -high)) for low, high in (x, y)]
    return np.hypot(*gaps) + 0.2 * np.abs(y[0] + height / 2) + 8 * (x[0] < 0)


def _place(axes, words: str, point: tuple, taken: list[Bbox], cost, **look):
    """Write words near a point, where they cover nothing that is taken: at the cheapest place.

    cost: of boxes whose sides are (left, right), (bottom, top) pixels from the point, so high.
    """
    text = axes.annotate(words, point, (0, 0), textcoords="offset points", zorder=5, **look)
    text.set(va="center", in_layout=False)
    box, frame, (home_x, home_y) = text.get_window_extent(), axes.bbox, _pixels(axes, point)
    lefts = np.arange(frame.x0, frame.x1 - box.width, GRID)
    left, low = np.meshgrid(lefts, np.arange(frame.y0, frame.y1 - box.height, GRID))
    right, high, free = left + box.width, low + box.height, np.full(left.shape, True)
    for other in taken:
        free &= (right <= other.x0) | (left >= other.x1) | (high <= other.y0) | (low >= other.y1)
    costs = cost((left - home_x, right - home_x), (low - home_y, high - home_y), box.height)
    best = np.where(free, costs, np.inf).argmin()
    left, right = left.flat[best] - home_x, right.flat[best] - home_x
    side = "left" if left > 0 else "right" if right < 0 else "center"
    across = {"left": left, "right": right, "center": (left + right) / 2}[side]
    up = (low.flat[best] + high.flat[best]) / 2 - home_y
    text.set(position=np.array([across, up]) * 72 / axes.figure.dpi, ha=side)
    taken.append(text.get_window_extent())
    return text


def _pixels(axes, point: tuple[float, float]) -> np.ndarray:
    return axes.transData.transform(point)


def _around(axes, point: tuple[float, float], pixels: float) -> Bbox:
    x, y = _pixels(axes, point)
    return Bbox.from_extents(x - pixels, y - pixels, x + pixels, y + pixels)
