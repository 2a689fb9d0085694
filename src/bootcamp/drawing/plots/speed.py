"""How fast runs were: samples per second, and the share of the machine's arithmetic."""

import math

from matplotlib.figure import Figure

from bootcamp.drawing.charts import above, margin, run_bar, shared_note
from bootcamp.drawing.palette import BLACK
from bootcamp.drawing.plots.run_bars import check, check_same, height, run_rows, value
from bootcamp.drawing.style import begin, device_word, finish, styled
from bootcamp.records import summary
from bootcamp.records.runs import Run, names
from bootcamp.units import flops, number, three_digits

BAR = {"height": 0.55, "ecolor": BLACK, "capsize": 6}
WHISKER = {"elinewidth": 2.5, "capthick": 2.5}


@styled
def throughput(*runs: Run) -> Figure:
    """Samples per second after warm-up: the median as a bar, the quartiles as its error bar.

    Below each value are the tokens per second.
    """
    check(runs)
    figure, axes = begin("Training speed, all ranks together", height(runs))
    says, longest = [], 0.0
    for row, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        measured = summary.measures(run.steps)
        samples, tokens = measured["samples_per_second"], measured["tokens_per_second"]
        median, low, high = (samples[key] for key in ("median", "q25", "q75"))
        spread = {"xerr": [[median - low], [high - median]], "error_kw": WHISKER}
        run_bar(axes, row, median, run, **BAR, **spread)
        lines = [f"{number(median)} samples/s", f"{number(tokens['median'])} tokens/s"]
        value(axes, row, high, lines)
        longest = max(longest, high)
        says.append(f"{name} {lines[0]} ({number(low)} to {number(high)})")
    run_rows(axes, names(runs), longest)
    axes.set_xlabel("samples per second")
    note = "Bar: median of the steps after warm-up. Line: from the first quartile to the third."
    notes = (note, *shared_note(runs))
    return finish(figure, runs, f"Median (quartiles): {'; '.join(says)}.", notes)


@styled
def achieved(*runs: Run, peak_flops_per_second: float) -> Figure:
    """Share of the machine's matrix multiply that the training's own arithmetic reaches, in %.

    peak_flops_per_second: what a matrix multiply reaches on one rank's device
    (roofline.matmul_flops_per_second). A run with N ranks is compared with N times that; with
    more ranks than cores, with what the cores reach.

    Raises ValueError where the runs' devices, dtypes or cores per rank differ: one peak fits one.
    """
    check(runs)
    if not 0 < peak_flops_per_second < math.inf:
        raise ValueError(f"peak_flops_per_second={peak_flops_per_second}: expected more than zero")
    check_same(runs, device_word, "on one kind of device")
    for name in ("dtype", "cores_per_rank"):
        check_same(runs, lambda run, name=name: run.config[name], f"with one {name}")
    figure, axes = begin("How much of the machine's arithmetic the training uses", height(runs))
    says, right = [], 115.0  # where the axes end
    for row, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        peak = _devices(run) * peak_flops_per_second
        share = 100 * run.achieved_flops_per_second / peak
        run_bar(axes, row, share, run, height=BAR["height"])
        words = f"{flops(run.achieved_flops_per_second)}\nof {flops(peak)}"
        label = f"{three_digits(share)} %"
        value(axes, row, share, [label])
        right = max(right, share / (0.95 - 0.03 * len(label)))  # the label ends before the margin
        margin(axes, row, words)
        says.append(f"{name} {label} ({words})".replace("\n", " "))
    run_rows(axes, names(runs), 0)
    axes.set_xlim(0, right)
    axes.axvline(100, color=BLACK, linestyle="--", linewidth=2)
    above(axes, 100, 1, "matrix multiply", up=5, xycoords=axes.get_xaxis_transform())
    axes.set_xlabel("% of the floating-point operations per second of a matrix multiply")
    note = f"100 %: a matrix multiply on the same ranks, {flops(peak_flops_per_second)} each."
    words = f"Share of a matrix multiply's speed: {'; '.join(says)}."
    return finish(figure, runs, words, (note, *shared_note(runs)))


def _devices(run: Run) -> int:
    """Devices that the ranks compute on: one each, or the cores there are."""
    if not run.oversubscribed:
        return run.world
    return max(1, run.config["machine"]["cores"] // run.config["cores_per_rank"])
