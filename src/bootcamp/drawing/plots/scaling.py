"""The speed-up of runs over one rank, against the number of ranks."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import BOLD, WHITE, above, cross, shared_note
from bootcamp.drawing.palette import PALE, line_look
from bootcamp.drawing.plots.run_bars import check, check_same, check_settings
from bootcamp.drawing.style import begin, device_word, finish, join_words, legend, styled
from bootcamp.records.runs import Run
from bootcamp.units import count

TITLES = {
    "strong": "More ranks share the same batch: how much faster?",
    "weak": "More ranks, each with its own batch: how much faster?",
}
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)))


@styled
def scaling(*runs: Run, kind: str = "strong") -> Figure:
    """Draw speed-up against the ideal, and efficiency, over the number of ranks.

    kind: "strong" (one global batch for all) or "weak" (one batch per rank for all). Speed-up is
    samples per second over those of one rank of the same strategy, or else of the first run with
    one rank; efficiency is speed-up per rank. Runs with more ranks than cores, or on shared cores,
    are left out and named at the foot. If all runs with one rank shared their cores, all that fit
    the cores are drawn, on a crossed ground.

    Raises ValueError where the runs do not fit the kind, or are not of one machine and model.
    """
    check(runs)
    fitting = [run for run in runs if not run.oversubscribed]
    alone = [run for run in fitting if not run.shared_cores]
    kept = alone if any(run.world == 1 for run in alone) else fitting
    _check_comparable(kept, kind)
    curves = _group_by_strategy(kept)
    figure, (left, right) = begin(TITLES[kind], 4.7 + 0.2 * len(curves), ncols=2)
    worlds = sorted({run.world for run in kept})
    left.plot(worlds, worlds, color=PALE, linestyle="--", label="ideal")
    right.plot(worlds, [100] * len(worlds), color=PALE, linestyle="--")
    says = [
        _draw_curve(left, right, position, name, curve, alone=len(curves) == 1)
        for position, (name, curve) in enumerate(curves.items())
    ]
    each = f"CPU ranks, {count(kept[0].config['cores_per_rank'], 'core')} each"
    unit = "GPUs, one rank each" if device_word(kept[0]) == "GPU" else each
    room = 0.08 * worlds[-1]
    for axes, name in ((left, "speed-up (×)"), (right, "efficiency (%)")):
        axes.set(xticks=worlds, xlim=(1 - room, worlds[-1] + 2 * room), xlabel=unit, ylabel=name)
        axes.set_ylim(0, 1.1 * axes.dataLim.y1)
        axes.grid(axis="y")
    if crossed := shared_note(kept):
        cross(left, right)
    legend(figure, left.get_lines())
    missing = _explain_left_out(runs, curves)
    per = "in all" if kind == "strong" else "per rank"
    batch = f"Batch: {_batch(kept[0], kind):g} samples {per}. Medians after warm-up."
    says = " ".join([f"Speed-up over one rank: {'; '.join(says)}.", *missing, *crossed])
    return finish(figure, runs, says, (*missing, *crossed, batch))


def _batch(run: Run, kind: str) -> float:
    """The global batch, or one rank's: the same for all runs of a figure."""
    batch = run.config["global_batch"]
    return batch if kind == "strong" else batch / run.world


def _check_comparable(runs, kind: str) -> None:
    if kind not in TITLES:
        raise ValueError(f"kind={kind!r}: expected 'strong' or 'weak'")
    if not any(run.world == 1 for run in runs):
        given = "; ".join(run.label for run in runs) or "only runs with more ranks than cores"
        raise ValueError(
            f"speed-up is measured against one rank, and no run with one rank was given ({given}). "
            "Launch one with ranks=1 and the same flags, and give it too."
        )
    check_settings(runs, "model", "size", "dtype", "cores_per_rank")
    check_same(runs, lambda run: run.origin.split(", torch")[0], "on one machine")
    what, other = ("batch per rank", "strong") if kind == "weak" else ("global batch", "weak")
    advice = f"Launch all with the same {what}, or see whether kind={other!r} fits."
    check_same(runs, lambda run: _batch(run, kind), f"with the same {what}", advice)
    pairs = [(run.strategy, run.world) for run in runs]
    for strategy, world in pairs:
        if pairs.count((strategy, world)) > 1:
            raise ValueError(f"{strategy} was given more than once with {world} rank(s): drop one.")


def _group_by_strategy(runs) -> dict[str, list[Run]]:
    """Sort each strategy's runs by ranks; without a run of one rank it begins with another's."""
    first = next(run for run in runs if run.world == 1)
    strategies = dict.fromkeys(run.strategy for run in runs if run.world > 1)
    curves = {}
    for strategy in strategies or {first.strategy: None}:
        own = sorted((run for run in runs if run.strategy == strategy), key=lambda run: run.world)
        curves[strategy] = own if own[0].world == 1 else [first, *own]
    return curves


def _explain_left_out(runs, curves) -> list[str]:
    """Return a sentence for each reason why runs are in no curve, naming them."""
    drawn = [run for curve in curves.values() for run in curve]
    groups = {}
    for run in [run for run in runs if run not in drawn]:
        why = "The curves begin with other runs on 1 rank."
        if run.oversubscribed:
            why = "More ranks than cores measure no scaling."
        elif run.shared_cores:
            why = "Their cores were shared with another run."
        groups.setdefault(why, []).append(run.label.split(" (")[0].replace(", ", " on "))
    return [f"Left out: {join_words(names)}. {why}" for why, names in groups.items()]


def _draw_curve(left, right, position: int, strategy: str, curve, alone: bool) -> str:
    base = curve[0].samples_per_second
    worlds = [run.world for run in curve]
    speedups = [run.samples_per_second / base for run in curve]
    percents = [100 * speedup / world for speedup, world in zip(speedups, worlds, strict=True)]
    other = f" (1 rank: {curve[0].strategy})" if curve[0].strategy != strategy else ""
    look = {**line_look(position), "linestyle": DASHES[position % 3]}
    left.plot(worlds, speedups, label=strategy + other, **look)
    right.plot(worlds, percents, **look)
    if len(curve) == 1:
        return f"{strategy} 1 on 1"
    if alone:
        _write_end(left, worlds[-1], speedups[-1], f"{speedups[-1]:.2f}×")
        _write_end(right, worlds[-1], percents[-1], f"{percents[-1]:.0f} %")
    words = [f"{speedup:.2f} on {world}" for speedup, world in zip(speedups, worlds, strict=True)]
    return f"{strategy}{other} {', '.join(words[1:])}"


def _write_end(axes, x: float, y: float, words: str) -> None:
    """Write the value of a curve's last point below it, or above it where the axis is near."""
    up = 12 if y < 0.3 * axes.dataLim.y1 else -26
    above(axes, x, y, words, up=up, bbox=WHITE, **BOLD)
