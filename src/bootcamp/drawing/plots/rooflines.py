"""Rooflines of a device and of communication, and the cost of an all-reduce by its size."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bootcamp.costs import overlap
from bootcamp.drawing.charts import BOLD, device_colour, log_axis
from bootcamp.drawing.palette import BLACK, BLUE, INK, ORANGE, PALE, PAPER, VERMILLION
from bootcamp.drawing.style import SMALL, begin, device_word, finish, legend, styled
from bootcamp.units import flops, size

AXES = {  # axis of a mesh -> what its panel shows
    "FSDP": "FSDP: computing / sending,\ngrows with the tokens on a rank",
    "tensor": "tensor: computing / sending,\ngrows with the width",
    "pipeline": "pipeline: computing / waiting,\nmicro-batches / (stages - 1)",
}
TICKS = {4: "4 B", 2**10: "1 KiB", 2**15: "32 KiB", 2**20: "1 MiB", 2**25: "32 MiB"}
GRID = 6  # pixels between the places that are tried for a label


@styled
def roofline(measured) -> Figure:
    """Draw FLOP/s by arithmetic intensity on log axes: a device's roof, the operations under it.

    measured: a roofline.Roofline. Operations whose operands fit into the last cache are hollow.
    """
    figure, axes = begin("What limits each operation: memory or arithmetic?", 7.0)
    operations = sorted(measured.operations, key=lambda row: -row["achieved_flops_per_second"])
    _draw_roof(axes, measured)
    device, labels = device_colour(measured), {}
    for row in operations:
        place = row["intensity"], row["achieved_flops_per_second"]
        fill, edge = ("white", device) if row["fits_in_cache"] else (device, INK)
        look = {"markerfacecolor": fill, "markeredgecolor": edge, "markeredgewidth": 2}
        axes.plot(*place, marker="o", zorder=4, **look)
        labels[f"{row['name']} {100 * (place[1] / measured.roof(place[0])):.0f} %"] = place
    says = (
        f"Roof: {flops(measured.peak_flops_per_second)} and "
        f"{size(measured.bandwidth_bytes_per_second)}/s, which meet at {measured.ridge:.1f} "
        f"operations per byte. Reached of the roof: {'; '.join(labels)}."
    )
    config = measured.config
    notes = (
        f"GPT {config['size']}, {config['global_batch']} samples, {config['dtype']}. Per cent: of "
        "the roof above the point. Bytes: every operand read once, every result written once.",
    )
    if any(row["fits_in_cache"] for row in operations):
        cache = size(measured.cache_bytes or 0)
        hollow = f"Hollow: all bytes fit in the last cache ({cache}), so memory is no limit and "
        notes += (f"{hollow}100 % can be passed.",)
    finish(figure, [measured], says, notes)
    _label_points(figure, axes, measured, labels)
    return figure


def _draw_roof(axes, measured) -> None:
    """Draw the roof as one line, with room around the operations."""
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


def _label_points(figure, axes, measured, labels: dict[str, tuple[float, float]]) -> None:
    """Write each label near its point, and the names of the roof's two parts."""
    figure.draw_without_rendering()  # from here on every position is known
    roof = [(x, measured.roof(x)) for x in np.geomspace(*axes.get_xlim(), 401)]
    taken = [_box_around(axes, point, 3) for point in roof]
    taken += [_box_around(axes, point, 11) for point in labels.values()]
    slanted = [point for point in roof if point[0] < measured.ridge]
    memory = f"memory:\n{size(measured.bandwidth_bytes_per_second)}/s"
    arithmetic = f"arithmetic: {flops(measured.peak_flops_per_second)}"
    _place(axes, memory, slanted[len(slanted) // 2], taken, **BOLD)
    _place(axes, arithmetic, roof[-1], taken, **BOLD)
    for label, point in labels.items():
        _place(axes, label, point, taken, fontsize=SMALL)


def _place(axes, words: str, point: tuple[float, float], taken: list[Bbox], **look) -> None:
    """Write words near a point, best right of it, where nothing is taken; if far, with a line."""
    place = {"textcoords": "offset points", "in_layout": False}
    text = axes.annotate(words, point, (0, 0), ha="center", va="center", zorder=5, **place, **look)
    box, frame = text.get_window_extent(), axes.bbox
    home = x, y = axes.transData.transform(point)
    lefts = np.arange(frame.x0, frame.x1 - box.width, GRID)
    left, low = np.meshgrid(lefts, np.arange(frame.y0, frame.y1 - box.height, GRID))
    right, high, free = left + box.width, low + box.height, np.full(left.shape, True)
    for other in taken:
        free &= (right <= other.x0) | (left >= other.x1) | (high <= other.y0) | (low >= other.y1)
    gaps = np.hypot(np.clip(x, left, right) - x, np.clip(y, low, high) - y)
    costs = gaps + 0.2 * np.abs((low + high) / 2 - y) + 8 * (left < x)
    best = np.where(free, costs, np.inf).argmin()
    found = Bbox.from_bounds(left.flat[best], low.flat[best], box.width, box.height)
    taken.append(found)
    points = 72 / axes.figure.dpi  # in a pixel
    text.set_position(points * ((found.min + found.max) / 2 - home))
    nearest = points * (np.clip(home, found.min, found.max) - home)
    if np.hypot(*nearest) > 20:
        line = {"arrowstyle": "-", "color": PALE, "shrinkA": 0, "shrinkB": 5, "linewidth": 1}
        axes.annotate("", point, nearest, arrowprops=line, **place)


def _box_around(axes, point: tuple[float, float], pixels: float) -> Bbox:
    return Bbox([axes.transData.transform(point)] * 2).padded(pixels)


@styled
def communication_roofline(table) -> Figure:
    """Draw the share reached by computing over sending under two roofs, a panel for each axis.

    table: rows of `axis` (a key of AXES), `name`, `ratio`, `reached` (shares), `source`, and `run`:
    None for a published row, which is drawn hollow. Raises ValueError for another axis.
    """
    if unknown := {row["axis"] for row in table} - AXES.keys():
        raise ValueError(f"axis {unknown}: expected of {', '.join(AXES)}")
    figure, panels = begin("Rooflines of communication", 6.6, ncols=3, sharey=True)
    ratios = np.geomspace(0.01, 100, 200)
    shown = {}
    for axes, (axis, shows) in zip(panels, AXES.items(), strict=True):
        roofs = {"computes, then sends": ("--", overlap.share_if_in_turn)}
        if axis == "FSDP":
            roofs["sends while it computes"] = ("-", overlap.share_if_at_once)
        for label, (line, roof) in roofs.items():
            heights = [roof(ratio) for ratio in ratios]
            axes.plot(ratios, heights, line, color=BLACK, label=f"at most: {label}")
        axes.fill_between(ratios, heights, color=PAPER, linewidth=0)
        for row in (row for row in table if row["axis"] == axis):
            look = {"marker": "o", "color": "white", "markeredgecolor": ORANGE}
            look["label"] = "published, GPUs"
            if run := row["run"]:
                look = {"marker": "D", "color": device_colour(run), "markeredgecolor": INK}
                look["label"] = f"measured, {device_word(run)} ranks"
            axes.plot(row["ratio"], row["reached"], linestyle="none", zorder=4, **look)
        axes.set(xscale="log", xlim=(0.01, 100), ylim=(0, 1.1), xlabel=shows)
        axes.set_xticks([0.01, 0.1, 1, 10, 100], minor=False)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid()
        shown |= {line.get_label(): line for line in axes.get_lines()}
    panels[0].set_ylabel("reached (a rank alone: 1)")
    legend(figure, shown.values())
    says = "; ".join("{axis}, {name}: {reached:.2f} at {ratio:.2f}".format(**row) for row in table)
    runs = [row["run"] for row in table if row["run"]]
    sources = "; ".join(sorted({row["source"] for row in table if not row["run"]}))
    note = "Hollow: published, as a share of the GPU's best matrix product. Filled: measured."
    notes = (note, f"Published: {sources}.")
    return finish(figure, runs, f"Reached at computing over sending: {says}.", notes)


@styled
def all_reduce_sweep(sweep, fit) -> Figure:
    """Draw the time of an all-reduce by its size with the line fitted to it, and bus bandwidth.

    sweep: an allreduce_sweep.Sweep. fit: its Fit, of the fastest call. Sizes fitted, held out
    and too small to be fitted have a marker each; the median call is a dash above the fastest.
    """
    figure, (left, right) = begin("What an all-reduce costs, by its size", 6.2, ncols=2)
    _draw_panel(left, sweep, fit, lambda size, seconds: 1e3 * seconds)
    bus = 2 * (sweep.world - 1) / sweep.world
    _draw_panel(right, sweep, fit, lambda size, seconds: bus * size / seconds / 1e9)
    medians = [1e3 * row["median_seconds"] for row in sweep.rows]
    dash = {"marker": "_", "markersize": 9, "markeredgewidth": 2, "color": PALE, "zorder": 1}
    sizes = [row["bytes"] for row in sweep.rows]
    left.plot(sizes, medians, linestyle="none", label="median call", **dash)
    left.set(ylabel="milliseconds of one call", yscale="log")
    left.yaxis.set_major_formatter("{x:g}")
    right.set(ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    legend(figure, left.get_lines())
    off = fit.errors(sweep.held_out)
    words = f"{1e6 * fit.alpha_seconds:.0f} µs (alpha) + bytes "
    words += f"{_rate(fit.beta_seconds_per_byte)} (1/beta)"
    if fit.knee_bytes is not None:
        beyond = _rate(fit.beyond_seconds_per_byte)
        words += f", those beyond {fit.knee_bytes / 2**20:g} MiB {beyond}"
    line = (
        f"Fitted line: {words}. On the sizes held out it is off by "
        f"{100 * off['median']:.0f} % (median) and by {100 * off['largest']:.0f} % at most."
    )
    points = (
        f"Points: the fastest of {sweep.config['rounds']} calls, on its slowest rank. Bus "
        "bandwidth: bytes / seconds × 2(N-1)/N, as nccl-tests defines it."
    )
    says = f"All-reduce over {sweep.world} ranks with {sweep.backend}. {line}"
    return finish(figure, [sweep], says, (line, points))


def _draw_panel(axes, sweep, fit, value) -> None:
    enough = [row for row in sweep.rows if row["bytes"] >= fit.smallest_bytes]
    small = [row for row in sweep.rows if row["bytes"] < fit.smallest_bytes]
    fitted = [row for row in enough if not row["held_out"]]
    held_out = [row for row in enough if row["held_out"]]
    for label, rows, look in (
        ("fitted to", fitted, {"color": BLUE}),
        ("held out", held_out, {"color": VERMILLION, "marker": "D", "markerfacecolor": "white"}),
        ("too small for the line", small, {"color": PALE, "markerfacecolor": "white"}),
    ):
        heights = [value(row["bytes"], row["seconds"]) for row in rows]
        look = {"marker": "o", "markersize": 7, "linestyle": "none", "zorder": 3, **look}
        axes.plot([row["bytes"] for row in rows], heights, label=label, **look)
    sizes = sorted({*(row["bytes"] for row in enough), fit.knee_bytes or fit.smallest_bytes})
    heights = [value(size, fit.predict(size)) for size in sizes]
    axes.plot(sizes, heights, color=BLACK, linewidth=2, label="fitted line")
    log_axis(axes.xaxis, TICKS, TICKS.values(), base=2)
    axes.set_xlabel("bytes that are added up")
    axes.grid()


def _rate(seconds_per_byte: float) -> str:
    return f"at {1e-9 / seconds_per_byte:.2g} GB/s" if seconds_per_byte else "for nothing"
