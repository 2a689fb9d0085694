"""How fast runs were: samples per second, share of the machine's arithmetic, speed-up by ranks."""

import math

from matplotlib.figure import Figure

from bootcamp.drawing.charts import BOLD, WHITE, above, cross, margin, run_bar, shared_note
from bootcamp.drawing.palette import BLACK, PALE, line_look
from bootcamp.drawing.plots.run_bars import check, check_same, height, run_rows, value
from bootcamp.drawing.style import begin, device_word, finish, legend, listed, styled
from bootcamp.records import summary
from bootcamp.records.runs import Run, names
from bootcamp.units import cores, flops, number, three_digits

BAR = {"height": 0.55, "ecolor": BLACK, "capsize": 6}
TITLES = {
    "strong": "More ranks share the same batch: how much faster?",
    "weak": "More ranks, each with its own batch: how much faster?",
}
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


@styled
def scaling(*runs: Run, kind: str = "strong") -> Figure:
    """Speed-up against the ideal, and efficiency, over the number of ranks.

    kind: "strong" (one global batch for all) or "weak" (one batch per rank for all). Speed-up is
    the ratio of samples per second to those of one rank of the same strategy, or else of the first
    run with one rank; efficiency is speed-up per rank. Each needs a run with one rank.

    Runs with more ranks than cores, or on cores that were shared with another run, are left out
    and named at the foot. If all runs with one rank shared their cores, there is nothing to compare
    with: then all that fit the cores are drawn, on a crossed ground.

    Raises ValueError where the runs do not fit the kind, or are not of one machine and model.
    """
    check(runs)
    fitting = [run for run in runs if not run.oversubscribed]
    alone = [run for run in fitting if not run.shared_cores]
    kept = alone if any(run.world == 1 for run in alone) else fitting
    _check_scaling(kept, kind)
    curves = _curves(kept)
    figure, (left, right) = begin(TITLES[kind], 4.7 + 0.2 * len(curves), ncols=2)
    worlds = sorted({run.world for run in kept})
    left.plot(worlds, worlds, color=PALE, linestyle="--", label="ideal")
    right.plot(worlds, [100] * len(worlds), color=PALE, linestyle="--")
    says = [
        _draw_curve(left, right, position, name, curve, alone=len(curves) == 1)
        for position, (name, curve) in enumerate(curves.items())
    ]
    _name_axes(left, right, worlds, kept[0])
    if crossed := shared_note(kept):
        cross(left, right)
    legend(figure, left.get_lines())
    missing = _left_out(runs, curves)
    per = "in all" if kind == "strong" else "per rank"
    batch = f"Batch: {_work(kept[0], kind):g} samples {per}. Medians after warm-up."
    says = " ".join([f"Speed-up over one rank: {'; '.join(says)}.", *missing, *crossed])
    return finish(figure, runs, says, (*missing, *crossed, batch))


def _left_out(runs, curves) -> list[str]:
    """A sentence for each reason why runs are in no curve, naming them."""
    drawn = [run for curve in curves.values() for run in curve]
    groups = {}
    for run in runs:
        if run in drawn:
            continue
        why = "The curves begin with other runs on 1 rank."
        if run.oversubscribed:
            why = "More ranks than cores measure no scaling."
        elif run.shared_cores:
            why = "Their cores were shared with another run."
        groups.setdefault(why, []).append(run.label.split(" (")[0].replace(", ", " on "))
    return [f"Left out: {listed(names)}. {why}" for why, names in groups.items()]


def _work(run: Run, kind: str) -> float:
    """What must be the same for all runs: the global batch, or the batch of one rank."""
    batch = run.config["global_batch"]
    return batch if kind == "strong" else batch / run.world


def _check_scaling(runs, kind: str) -> None:
    if kind not in TITLES:
        raise ValueError(f"kind={kind!r}: expected 'strong' or 'weak'")
    if not any(run.world == 1 for run in runs):
        given = "; ".join(run.label for run in runs) or "only runs with more ranks than cores"
        raise ValueError(
            f"speed-up is measured against one rank, and no run with one rank was given ({given}). "
            "Launch one with ranks=1 and the same flags, and give it too."
        )
    check_same(runs, device_word, "on one kind of device")
    check_same(runs, lambda run: run.origin.split(", torch")[0], "on one machine")
    for name in ("model", "size", "dtype", "cores_per_rank"):
        check_same(runs, lambda run, name=name: run.config[name], f"with one {name}")
    what, other = ("batch per rank", "strong") if kind == "weak" else ("global batch", "weak")
    advice = f"Launch all with the same {what}, or see whether kind={other!r} fits."
    check_same(runs, lambda run: _work(run, kind), f"with the same {what}", advice)
    pairs = [(run.strategy, run.world) for run in runs]
    if twice := [pair for pair in pairs if pairs.count(pair) > 1]:
        raise ValueError(
            f"{twice[0][0]} was given more than once with {twice[0][1]} rank(s): expected one run "
            "of a strategy for each number of ranks. Leave the others out."
        )


def _curves(runs) -> dict[str, list[Run]]:
    """The runs of each strategy in order of ranks, the one with one rank first.

    A strategy that has no run with one rank begins with another strategy's.
    """
    first = next(run for run in runs if run.world == 1)
    strategies = dict.fromkeys(run.strategy for run in runs if run.world > 1)
    curves = {}
    for strategy in strategies or {first.strategy: None}:
        own = sorted((run for run in runs if run.strategy == strategy), key=lambda run: run.world)
        curves[strategy] = own if own[0].world == 1 else [first, *own]
    return curves


def _draw_curve(left, right, position: int, strategy: str, curve, alone: bool) -> str:
    base = curve[0].samples_per_second
    worlds = [run.world for run in curve]
    speedups = [run.samples_per_second / base for run in curve]
    other = f" (1 rank: {curve[0].strategy})" if curve[0].strategy != strategy else ""
    look = {**line_look(position), "linestyle": ("-", (0, (5, 1.5)), (0, (1.5, 1)))[position % 3]}
    left.plot(worlds, speedups, label=strategy + other, **look)
    percents = [100 * speedup / world for speedup, world in zip(speedups, worlds, strict=True)]
    right.plot(worlds, percents, **look)
    words = [f"{speedup:.2f} on {world}" for speedup, world in zip(speedups, worlds, strict=True)]
    if alone and len(curve) > 1:
        _name_end(left, worlds[-1], speedups[-1], f"{speedups[-1]:.2f}×")
        _name_end(right, worlds[-1], percents[-1], f"{percents[-1]:.0f} %")
    return f"{strategy}{other} {', '.join(words[1:])}" if len(curve) > 1 else f"{strategy} 1 on 1"


def _name_end(axes, world: int, end: float, words: str) -> None:
    """The last value below its point, or above it where the axis is near."""
    low = end < 0.3 * _highest(axes)
    above(axes, world, end, words, up=12 if low else -26, bbox=WHITE, **BOLD)


def _highest(axes) -> float:
    return max(y for line in axes.lines for y in line.get_ydata())


def _name_axes(left, right, worlds: list[int], run: Run) -> None:
    each = cores(run.config["cores_per_rank"])
    unit = "GPUs, one rank each" if device_word(run) == "GPU" else f"CPU ranks, {each} each"
    room = 0.08 * worlds[-1]
    for axes, name in ((left, "speed-up (×)"), (right, "efficiency (%)")):
        axes.set(xticks=worlds, xlim=(1 - room, worlds[-1] + 2 * room), xlabel=unit, ylabel=name)
        axes.set_ylim(0, 1.1 * _highest(axes))
        axes.grid(axis="y")
