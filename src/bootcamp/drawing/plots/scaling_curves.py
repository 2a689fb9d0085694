"""Speed-up and efficiency of a strategy over the number of ranks."""

from matplotlib.figure import Figure

from bootcamp import units
from bootcamp.drawing.charts import BOLD, WHITE, above, cross, shared_note
from bootcamp.drawing.palette import PALE, line_look
from bootcamp.drawing.plots.run_bars import check, check_same
from bootcamp.drawing.style import begin, device_word, finish, legend, listed, styled
from bootcamp.records.runs import Run

TITLES = {
    "strong": "More ranks share the same batch: how much faster?",
    "weak": "More ranks, each with its own batch: how much faster?",
}
CROWDED = "only runs with more ranks than cores"


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
        why = (
            "More ranks than cores measure no scaling."
            if run.oversubscribed
            else "Their cores were shared with another run."
            if run.shared_cores
            else "The curves begin with other runs on 1 rank."
        )
        if run not in drawn:
            words = run.label.split(" (")[0].replace(", ", " on ")
            groups.setdefault(why, []).append(words)
    return [f"Left out: {listed(names)}. {why}" for why, names in groups.items()]


def _work(run: Run, kind: str) -> float:
    """What must be the same for all runs: the global batch, or the batch of one rank."""
    batch = run.config["global_batch"]
    return batch if kind == "strong" else batch / run.world


def _check_scaling(runs, kind: str) -> None:
    """Raise ValueError unless the runs measure this kind of scaling."""
    if kind not in TITLES:
        raise ValueError(f"kind={kind!r}: expected 'strong' or 'weak'")
    if not any(run.world == 1 for run in runs):
        given = "; ".join(run.label for run in runs) or CROWDED
        raise ValueError(
            f"speed-up is measured against one rank, and no run with one rank was given ({given}). "
            "Launch one with ranks=1 and the same flags, and give it too."
        )
    check_same(runs, device_word, "on one kind of device")
    check_same(runs, lambda run: run.origin.split(", torch")[0], "on one machine")
    for name in ("model", "size", "dtype", "cores_per_rank"):
        check_same(runs, lambda run, name=name: run.config[name], f"with one {name}")
    what = "batch per rank" if kind == "weak" else "global batch"
    other = "strong" if kind == "weak" else "weak"
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
    """One strategy in both panels; returns its values as words."""
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
    each = units.cores(run.config["cores_per_rank"])
    unit = "GPUs, one rank each" if device_word(run) == "GPU" else f"CPU ranks, {each} each"
    room = 0.08 * worlds[-1]
    for axes in (left, right):
        axes.set_xticks(worlds)
        axes.set(xlim=(1 - room, worlds[-1] + 2 * room), xlabel=unit)
        axes.set_ylim(0, 1.1 * _highest(axes))
        axes.grid(axis="y")
    left.set_ylabel("speed-up (×)")
    right.set_ylabel("efficiency (%)")
