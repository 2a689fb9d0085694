"""What ranks send in a step, what that costs, and what it leaves of their arithmetic."""

import numpy as np
from matplotlib.figure import Figure

from bootcamp.costs import overlap
from bootcamp.drawing.charts import log_axis, run_bar
from bootcamp.drawing.palette import BLACK, BLUE, GREY, INK, ORANGE, PALE, PAPER, SKY, VERMILLION
from bootcamp.drawing.plots.run_bars import check, height, run_rows, value
from bootcamp.drawing.style import begin, device_word, finish, legend, styled
from bootcamp.records.runs import Run, names
from bootcamp.units import scale, size

AXES = {  # axis of a mesh -> what its panel shows
    "FSDP": "FSDP: computing / sending,\ngrows with the tokens on a rank",
    "tensor": "tensor: computing / sending,\ngrows with the width",
    "pipeline": "pipeline: computing / waiting,\nmicro-batches / (stages - 1)",
}
SWEEP_TICKS = {4: "4 B", 2**10: "1 KiB", 2**15: "32 KiB", 2**20: "1 MiB", 2**25: "32 MiB"}


@styled
def sent_bytes(*runs: Run) -> Figure:
    """Bytes that a rank sends in a step: by formula, and as counted (the mean over the ranks).

    The formula is that of a ring all-reduce of the gradients, 2(N-1)/N times their bytes. What GPUs
    exchange passes by the kernel's count, so their runs say "not counted here", as do runs whose
    record holds no count.
    """
    check(runs, needs="ranks")
    figure, axes = begin("Bytes that one rank sends in each step", height(runs, 0.95))
    pairs = [(run.predicted_sent_bytes_per_step, _counted(run)) for run in runs]
    largest = max(value for pair in pairs for value in pair if value is not None)
    factor, unit = scale(largest)
    says = []
    for row, (run, name, (formula, counted)) in enumerate(
        zip(runs, names(runs), pairs, strict=True)
    ):
        run_bar(axes, row - 0.2, formula / factor, run, height=0.36, color=GREY)
        value(axes, row - 0.2, formula / factor, [f"formula {size(formula)}"])
        words = "not counted here" if counted is None else f"counted {size(counted)}"
        if counted is not None:
            run_bar(axes, row + 0.2, counted / factor, run, height=0.36)
        value(axes, row + 0.2, (counted or 0) / factor, [words])
        says.append(f"{name}: formula {size(formula)}, {words}")
    run_rows(axes, names(runs), largest / factor)
    axes.set_xlabel(f"sent by one rank in one step ({unit})")
    note = "Formula 2(N-1)/N × bytes of the gradients: a ring all-reduce over N ranks."
    return finish(figure, runs, f"Sent by one rank per step: {'; '.join(says)}.", (note,))


def _counted(run: Run) -> float | None:
    """Mean over the ranks; None where a rank has no count, and on GPUs, whose traffic has none."""
    counts = [rank["sent_bytes_per_step"] for rank in run.ranks]
    return None if run.device == "cuda" or None in counts else sum(counts) / len(counts)


@styled
def all_reduce_sweep(sweep, fit) -> Figure:
    """Time of an all-reduce by its size with the line fitted to it; bus bandwidth beside it.

    sweep: an allreduce_sweep.Sweep. fit: its Fit, of the fastest call. Sizes fitted, held out
    and too small to be fitted have a marker each; the median call is a dash above the fastest.
    """
    figure, (left, right) = begin("What an all-reduce costs, by its size", 6.2, ncols=2)
    _sweep_panel(left, sweep, fit, lambda size, seconds: 1e3 * seconds)
    bus = 2 * (sweep.world - 1) / sweep.world
    _sweep_panel(right, sweep, fit, lambda size, seconds: bus * size / seconds / 1e9)
    medians = [1e3 * row["median_seconds"] for row in sweep.rows]
    dash = {"marker": "_", "markersize": 9, "markeredgewidth": 2, "color": PALE, "zorder": 1}
    left.plot(_sizes(sweep.rows), medians, linestyle="none", label="median call", **dash)
    left.set(ylabel="milliseconds of one call", yscale="log")
    left.yaxis.set_major_formatter("{x:g}")
    right.set(ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    legend(figure, left.get_lines())
    off = fit.errors(sweep.held_out)
    line = (
        f"Fitted line: {_fit_words(fit)}. On the sizes held out it is off by "
        f"{100 * off['median']:.0f} % (median) and by {100 * off['largest']:.0f} % at most."
    )
    points = (
        f"Points: the fastest of {sweep.config['rounds']} calls, on its slowest rank. Bus "
        "bandwidth: bytes / seconds × 2(N-1)/N, as nccl-tests defines it."
    )
    says = f"All-reduce over {sweep.world} ranks with {sweep.backend}. {line}"
    return finish(figure, [sweep], says, (line, points))


def _sweep_panel(axes, sweep, fit, value) -> None:
    enough = [row for row in sweep.rows if row["bytes"] >= fit.smallest_bytes]
    held_out = [row for row in enough if row["held_out"]]
    small = [row for row in sweep.rows if row["bytes"] < fit.smallest_bytes]
    hollow = {"markerfacecolor": "white", "linestyle": "none"}
    for label, rows, look in (
        ("fitted to", [row for row in enough if not row["held_out"]], {"color": BLUE}),
        ("held out", held_out, {"color": VERMILLION, "marker": "D", **hollow}),
        ("too small for the line", small, {"color": PALE, **hollow}),
    ):
        heights = [value(row["bytes"], row["seconds"]) for row in rows]
        look = {"marker": "o", "markersize": 7, "linestyle": "none", "zorder": 3, **look}
        axes.plot(_sizes(rows), heights, label=label, **look)
    sizes = sorted({*_sizes(enough), fit.knee_bytes or fit.smallest_bytes})
    heights = [value(size, fit.predict(size)) for size in sizes]
    axes.plot(sizes, heights, color=BLACK, linewidth=2, label="fitted line")
    log_axis(axes.xaxis, SWEEP_TICKS, SWEEP_TICKS.values(), base=2)
    axes.set_xlabel("bytes that are added up")
    axes.grid()


def _sizes(rows: list[dict]) -> list[int]:
    return [row["bytes"] for row in rows]


def _fit_words(fit) -> str:
    words = f"{1e6 * fit.alpha_seconds:.0f} µs (alpha) + bytes {_rate(fit.beta_seconds_per_byte)}"
    if fit.knee_bytes is None:
        return f"{words} (1/beta)"
    beyond = _rate(fit.beyond_seconds_per_byte)
    return f"{words} (1/beta), those beyond {fit.knee_bytes / 2**20:g} MiB {beyond}"


def _rate(seconds_per_byte: float) -> str:
    return f"at {1e-9 / seconds_per_byte:.2g} GB/s" if seconds_per_byte else "for nothing"


@styled
def communication_roofline(table) -> Figure:
    """A panel for each kind of parallelism: share reached by computing over sending, two roofs.

    table: rows of `axis` (a key of AXES), `name`, `ratio`, `reached` (shares), `source`, and `run`:
    None for a published row, which is drawn hollow. Raises ValueError for another axis.
    """
    if unknown := {row["axis"] for row in table} - AXES.keys():
        raise ValueError(f"axis {unknown}: expected of {', '.join(AXES)}")
    figure, panels = begin("Rooflines of communication", 6.6, ncols=3, sharey=True)
    ratios = np.geomspace(0.01, 100, 200)
    for axes, (axis, shows) in zip(panels, AXES.items(), strict=True):
        rows = [row for row in table if row["axis"] == axis]
        roofs = {"computes, then sends": ("--", overlap.in_turn)}
        if axis == "FSDP":
            roofs["sends while it computes"] = ("-", overlap.hidden)
        for label, (line, roof) in roofs.items():
            heights = [roof(ratio) for ratio in ratios]
            axes.plot(ratios, heights, line, color=BLACK, label=f"at most: {label}")
        axes.fill_between(ratios, heights, color=PAPER, linewidth=0)
        for row in rows:
            axes.plot(row["ratio"], row["reached"], **_point_look(row), zorder=4)
        axes.set(xscale="log", xlim=(0.01, 100), ylim=(0, 1.1))
        axes.set_xlabel(shows)
        axes.set_xticks([0.01, 0.1, 1, 10, 100], minor=False)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid()
    panels[0].set_ylabel("reached (a rank alone: 1)")
    shown = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    legend(figure, [line for name, line in shown.items() if not name.startswith("_")])
    says = "; ".join(
        f"{row['axis']}, {row['name']}: {row['reached']:.2f} at {row['ratio']:.2f}" for row in table
    )
    runs = [row["run"] for row in table if row["run"]]
    sources = "; ".join(sorted({row["source"] for row in table if not row["run"]}))
    note = "Hollow: published, as a share of the GPU's best matrix product. Filled: measured."
    notes = (note, f"Published: {sources}.")
    return finish(figure, runs, f"Reached at computing over sending: {says}.", notes)


def _point_look(row: dict) -> dict:
    if row["run"] is None:
        look = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": ORANGE}
        return look | {"linestyle": "none", "label": "published, GPUs"}
    word = device_word(row["run"])
    look = {"marker": "D", "color": SKY if word == "CPU" else ORANGE, "markeredgecolor": INK}
    return look | {"linestyle": "none", "label": f"measured, {word} ranks"}
