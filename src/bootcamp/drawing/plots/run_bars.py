"""Figures with a bar for each run: speed, share of the peak, bytes sent, memory."""

import math
import textwrap

from matplotlib.figure import Figure

from bootcamp.drawing import charts
from bootcamp.drawing.palette import BLACK, GREY, KINDS
from bootcamp.drawing.style import SMALL, begin, device_word, finish, legend, styled
from bootcamp.records.runs import Run, name_runs
from bootcamp.records.steps import Record
from bootcamp.records.summary import summarize_steps
from bootcamp.units import count, flops, number, size, three_digits

THICK = 0.55  # of a run's only bar
WHISKER = {"ecolor": BLACK, "capsize": 6, "error_kw": {"elinewidth": 2.5, "capthick": 2.5}}
PEAKS = {
    "CPU": "Process peak: all that the process had in memory, its libraries included.",
    "GPU": "GPU peak: the most that torch held on the GPU at one time.",
}


def check(runs, ended_well: bool = True) -> None:
    """Raise unless these are runs whose record holds what a figure draws."""
    if not runs:
        raise ValueError("expected at least one run, given none")
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(f"expected runs one after another (*runs), given {type(run).__name__}")
        name = run.folder.name
        if ended_well and run.status != "ok":
            raise ValueError(f"{name} ended with status {run.status}, expected ok: leave it out.")
        if ended_well and not run.ranks:
            raise ValueError(f"{name} holds no record of a rank: launch it again.")
        if not run.steps or None in run.losses:
            why = "it ended before its first step, or was a rehearsal (device meta)"
            raise ValueError(f"{name} recorded no losses: {why}. Leave it out.")


def check_same(runs, value, what: str, advice: str = "Draw the others in a figure of their own."):
    """Raise ValueError unless value(run) is the same for all runs; what: "on one machine"."""
    found = {value(run): run for run in runs}
    if len(found) > 1:
        given = ", ".join(f"{number(key)} ({run.label})" for key, run in found.items())
        raise ValueError(f"the runs don't fit: expected all {what}, given {given}. {advice}")


def check_settings(runs, *settings: str) -> None:
    """Raise ValueError unless the runs are on one kind of device and have these settings alike."""
    check_same(runs, device_word, "on one kind of device")
    for name in settings:
        check_same(runs, lambda run, name=name: run.config[name], f"with one {name}")


@styled
def throughput(*runs: Run) -> Figure:
    """Draw samples per second after warm-up: median and quartiles, beside the first run's."""
    check(runs)
    figure, axes = begin("Training speed, all ranks together", _height(runs, 0.85))
    says = []
    for row, (run, name) in enumerate(zip(runs, name_runs(runs), strict=True)):
        median, low, high = summarize_steps(run.steps)["samples_per_second"].values()
        spread = {"xerr": [[median - low], [high - median]], **WHISKER}
        charts.run_bar(axes, row, median, run, height=THICK, **spread)
        words = f"{number(median)} samples/s"
        used = min(run.world * run.config["cores_per_rank"], run.config["machine"]["cores"])
        where = f" on {count(used, 'core')}" if device_word(run) == "CPU" else ""
        tokens = f"{number(each)} tokens/s" if (each := run.tokens_per_second) > median else ""
        _write_value(axes, row, high, words, f"{tokens}{where}".strip())
        says.append(f"{name} {words} ({number(low)} to {number(high)}){where}")
    _name_axes(axes, name_runs(runs), "samples per second", width=32)
    note = "Bar: median of the steps after warm-up. Line: from the first quartile to the third."
    if runs[1:]:
        axes.axvline(runs[0].samples_per_second, color=BLACK, linestyle="--", linewidth=2)
        note += " Dashed: the first bar."
    says = f"Median (quartiles): {'; '.join(says)}."
    return finish(figure, runs, says, (note, *charts.shared_note(runs)))


@styled
def achieved(*runs: Run, peak_flops_per_second: float) -> Figure:
    """Draw the share of a matrix multiply's speed that the training's own arithmetic reaches, in %.

    peak_flops_per_second: of a matrix multiply on one rank's device
    (roofline.matmul_flops_per_second). A run with N ranks is compared with N times that; with
    more ranks than cores, with what the cores reach.

    Raises ValueError where the runs' devices, dtypes or cores per rank differ: one peak fits one.
    """
    check(runs)
    if not 0 < peak_flops_per_second < math.inf:
        raise ValueError(f"peak_flops_per_second={peak_flops_per_second}: expected more than zero")
    check_settings(runs, "dtype", "cores_per_rank")
    figure, axes = begin("How much of the machine's arithmetic the training uses", _height(runs))
    says, right = [], 115.0  # where the axes end
    for row, (run, name) in enumerate(zip(runs, name_runs(runs), strict=True)):
        most = run.config["machine"]["cores"] // run.config["cores_per_rank"]
        devices = max(1, most) if run.oversubscribed else run.world
        peak = devices * peak_flops_per_second
        share = 100 * run.achieved_flops_per_second / peak
        charts.run_bar(axes, row, share, run, height=THICK)
        words = f"{flops(run.achieved_flops_per_second)}\nof {flops(peak)}"
        label = f"{three_digits(share)} %"
        _write_value(axes, row, share, label)
        right = max(right, share / (0.95 - 0.03 * len(label)))  # the label ends before the margin
        charts.margin(axes, row, words)
        says.append(f"{name} {label} ({words})".replace("\n", " "))
    _name_axes(axes, name_runs(runs), "% of a matrix multiply's FLOP/s")
    axes.set_xlim(0, right)
    axes.axvline(100, color=BLACK, linestyle="--", linewidth=2)
    charts.above(axes, 100, 1, "matrix multiply", up=5, xycoords=axes.get_xaxis_transform())
    note = f"100 %: a matrix multiply on the same ranks, {flops(peak_flops_per_second)} each."
    says = f"Share of a matrix multiply's speed: {'; '.join(says)}."
    return finish(figure, runs, says, (note, *charts.shared_note(runs)))


@styled
def sent_bytes(*runs: Run) -> Figure:
    """Draw the bytes that a rank sends in a step: by formula, and counted (mean over the ranks)."""
    check(runs)
    figure, axes = begin("Bytes that one rank sends in each step", _height(runs, 0.95))
    says = []
    for row, (run, name) in enumerate(zip(runs, name_runs(runs), strict=True)):
        formula = run.predicted_sent_bytes_per_step
        counts = [rank.sent_bytes_per_step for rank in run.ranks]
        counted, words = 0.0, "not counted here"
        if run.device != "cuda" and None not in counts:  # the kernel sees none between GPUs
            counted = sum(counts) / len(counts)
            words = f"counted {size(counted)}"
            charts.run_bar(axes, row + 0.2, counted, run, height=0.36)
        charts.run_bar(axes, row - 0.2, formula, run, height=0.36, color=GREY)
        _write_value(axes, row - 0.2, formula, f"formula {size(formula)}")
        _write_value(axes, row + 0.2, counted, words)
        says.append(f"{name}: formula {size(formula)}, {words}")
    _name_axes(axes, name_runs(runs), "sent by one rank in one step", size)
    note = "Formula 2(N-1)/N × bytes of the gradients: a ring all-reduce over N ranks."
    return finish(figure, runs, f"Sent by one rank per step: {'; '.join(says)}.", (note,))


@styled
def memory(*runs: Run) -> Figure:
    """Stack what fills each rank's memory: parameters, gradients, optimizer state, activations.

    Counted from live tensors; the rank's peak is a text. Ranks of one run with equal bytes share a
    bar if there are more than four.
    """
    check(runs)
    bars = [
        bar for run, name in zip(runs, name_runs(runs), strict=True) for bar in _bars(run, name)
    ]
    figure, axes = begin("What fills the memory of each rank", _height(bars, 0.62) + 0.4)
    alike = {}
    for row, (label, rank, word) in enumerate(bars):
        sizes = _bytes_by_kind(rank)
        end = charts.stack_bars(axes, row, sizes, 1)
        peak = f"{'GPU' if word == 'GPU' else 'process'} peak {size(rank.peak_bytes)}"
        _write_value(axes, row, end, size(end), peak)
        parts = ", ".join(f"{kind} {size(each)}" for kind, each in sizes.items())
        alike.setdefault(f"{size(end)} ({parts})", []).append(label)
    _name_axes(axes, [label for label, *_ in bars], "memory of one rank", size)
    legend(figure, charts.handles(KINDS))
    says = "; ".join(f"{' and '.join(labels)} {words}" for words, labels in alike.items())
    notes = tuple(PEAKS[word] for word in dict.fromkeys(map(device_word, runs)))
    return finish(figure, runs, f"Memory of one rank: {says}.", notes)


def _bytes_by_kind(rank: dict) -> dict[str, int]:
    return {kind: rank[f"{kind.split()[0].removesuffix('s')}_bytes"] for kind in KINDS}


def _bars(run: Run, name: str) -> list[tuple[str, Record, str]]:
    """List (label, record of a rank, kind of device) of each bar of a run."""
    shown = {f", rank {rank.rank} of {run.world}": rank for rank in run.ranks}
    alike = len({tuple(_bytes_by_kind(rank).values()) for rank in run.ranks}) == 1
    if alike and len(run.ranks) > 4:
        shown = {f", each of {run.world} ranks": max(run.ranks, key=lambda rank: rank.peak_bytes)}
    ranks = f", {run.world} ranks"
    return [(name.replace(ranks, which), rank, device_word(run)) for which, rank in shown.items()]


def _height(bars, each: float = 0.75) -> float:
    """Inches of a figure with so many rows."""
    return max(5.0, 2.3 + each * len(bars))


def _write_value(axes, row: float, x: float, words: str, below: str = "") -> None:
    """Write right of a bar: bold words, and small ones below them."""
    bold, behind = {"up": 9 if below else 0, **charts.BOLD}, {**charts.WHITE, "pad": 3}
    for text, look in ((words, bold), (below, {"up": -10, "fontsize": SMALL})):
        charts.beside(axes, x, row, text, bbox=behind, **look)


def _name_axes(axes, labels: list[str], xlabel: str, unit=three_digits, width: int = 99) -> None:
    """Name the rows and the axis, whose values `unit` writes; leave room right of the bars."""
    words = [label.replace(" (", "\n(", 1) if len(label) > 20 else label for label in labels]
    words = ["\n".join(textwrap.fill(line, width) for line in each.split("\n")) for each in words]
    charts.rows(axes, words, beside=max(0.6, 1.5 - len(labels) / 2))  # a bar alone stays a bar
    axes.set(xlim=(0, 1.55 * axes.dataLim.x1 or 1), xlabel=xlabel)
    axes.xaxis.set_major_formatter(lambda value, _: unit(value))
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.grid(axis="x")
