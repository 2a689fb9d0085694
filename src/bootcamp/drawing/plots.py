"""Figures of runs: `show(throughput(*runs))`. Each takes Run objects and returns a Figure.

Nothing is launched, written or shown here. Every figure names the machine, the ranks and the origin
of its numbers at its foot, marks runs with more ranks than cores, and carries its values as a
sentence in `figure.alt`. A CPU rank's bar is blue, a GPU's is orange, and the words say so too.

All raise ValueError on a run whose record lacks what is drawn, TypeError on anything but runs.
"""

import math

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    PALE,
    SKY,
    VERMILLION,
)
from bootcamp.drawing.style import SMALL, begin, device_word, finish, legend, listed, show, styled
from bootcamp.records import summary
from bootcamp.records import trace as intervals
from bootcamp.records.runs import Run, names
from bootcamp.units import number

__all__ = (
    "achieved",
    "all_reduce_sweep",
    "loss_curves",
    "memory",
    "roofline",
    "scaling",
    "sent_bytes",
    "show",
    "throughput",
    "timeline",
)

TOLERANCE = 1e-5
MANY_STEPS = 60  # from here on, differences are points without a line between them

CROWDED_HATCH = "//"
# what tells runs with one label apart
KINDS = {
    "parameters": ("parameter_bytes", BLUE, ""),
    "gradients": ("gradient_bytes", ORANGE, "//"),
    "optimizer state": ("optimizer_bytes", GREEN, ".."),
    "activations": ("activation_bytes", "#DDDDDD", "\\\\"),
}


@styled
def loss_curves(*runs: Run) -> Figure:
    """Loss per step, and below it each run's distance from the first run.

    The first run is a wide pale line and the others are dashes that leave each other's gaps free,
    so that equal curves stay visible. The distance has a log axis with the tolerance of the
    equality proofs, 1e-5; equal losses are drawn on a line of their own at its bottom.
    """
    _check(runs, needs="steps")
    compared = len(runs) > 1
    title = "Loss at each step" + (", and its distance from the first run" if compared else "")
    ratios = {"height_ratios": [3, 1.5]} if compared else {}
    figure, axes = begin(
        title, 6.5 if compared else 5.0, nrows=1 + compared, sharex=True, squeeze=False, **ratios
    )
    upper, says = axes[0][0], []
    for position, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        look = _line(position, len(runs), len(run.steps))
        upper.plot(*zip(*_losses(run).items(), strict=True), label=name, **look)
        says.append(f"{name} ends at {number(run.losses[-1])}")
    upper.set_ylabel("mean loss (nats)")
    legend(figure, upper.get_lines())
    upper.grid(axis="y")
    if compared:
        says.append(_draw_differences(axes[1][0], runs))
    axes[-1][0].set_xlabel("step")
    axes[-1][0].xaxis.get_major_locator().set_params(integer=True)
    notes = _broken(runs)
    return finish(figure, runs, " ".join([f"Loss per step: {'; '.join(says)}.", *notes]), notes)


def _line(position: int, count: int, steps: int) -> dict:
    """The first run wide and pale, each other one dashed and marked where the rest are not."""
    colour = COLOURS[position % len(COLOURS)]
    if position == 0:
        return {"color": SKY, "linewidth": 9, "alpha": 0.55, "solid_capstyle": "round"}
    others = count - 1
    gap = 3 * (others - 1) or 2
    apart = max(2, steps // (6 * others))
    return {
        "color": colour,
        "linewidth": 2.5,
        "linestyle": (3 * (position - 1), (3, gap)),
        "marker": MARKERS[position % len(MARKERS)],
        "markevery": (apart * (position - 1), apart * others),
        "markersize": 8,
    }


def _losses(run: Run) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in run.steps}


def _differences(runs) -> list[dict[int, float]]:
    """|loss - loss of the first run| by step, for each other run; NaN where either is no number.

    Raises ValueError where a run has no step in common with the first.
    """
    first, rows = _losses(runs[0]), []
    for run in runs[1:]:
        common = {step: loss for step, loss in _losses(run).items() if step in first}
        if not common:
            raise ValueError(
                f"{run.label} has no step in common with {runs[0].label}: leave it out."
            )
        apart = {step: abs(loss - first[step]) for step, loss in common.items()}
        rows.append({step: d if math.isfinite(d) else math.nan for step, d in apart.items()})
    return rows


def _draw_differences(axes, runs) -> str:
    """The lower panel of loss_curves; returns what it says."""
    rows = _differences(runs)
    finite = [value for row in rows for value in row.values() if math.isfinite(value)]
    floor, top = _floor(finite), max([TOLERANCE, *finite])
    for position, row in enumerate(rows, start=1):
        look = _line(position, len(runs), len(row)) | {
            "linestyle": "-" if len(row) <= MANY_STEPS else "none",
            "linewidth": 1.5,
            "markevery": 1,
            # equal ones show around each other
            "markersize": (6 if len(row) <= MANY_STEPS else 3) + 2 * (len(rows) - position),
        }
        axes.plot(list(row), [max(value, floor) for value in row.values()], **look)
    axes.axhline(TOLERANCE, color=BLACK, linewidth=2)
    across = axes.get_yaxis_transform()
    axes.text(1.01, TOLERANCE, "largest\nallowed", transform=across, va="center", fontsize=SMALL)
    axes.set_ylabel("difference")
    _difference_axis(axes, floor, top)
    far = f"{max(finite):.1e}" if finite else "no number"
    return f"largest difference to the first {far}, allowed {TOLERANCE:.0e}"


def _difference_axis(axes, floor: float, top: float) -> None:
    """A log axis with a handful of decades, 1e-5 among them, and "equal" at its floor."""
    low, high = round(math.log10(floor)), math.ceil(math.log10(top))
    stride = math.ceil((high - low) / 3)
    decades = [d for d in range(low + stride, high + 1) if (d + 5) % stride == 0]
    axes.set_yscale("log")
    axes.set_ylim(floor / 3, top * 20)
    labels = ["equal", *(f"$10^{{{decade}}}$" for decade in decades)]
    axes.set_yticks([floor, *(10.0**decade for decade in decades)], labels)
    axes.minorticks_off()


def _floor(differences) -> float:
    """Where equal losses are drawn: the power of ten two below the smallest difference."""
    smallest = min([1e-6, *(value for value in differences if value > 0)])
    return 10.0 ** (math.floor(math.log10(smallest)) - 2)


def _broken(runs) -> tuple[str, ...]:
    """A sentence for each run whose loss stops being a number: a gap in a curve needs a reason."""
    notes = []
    for run, name in zip(runs, names(runs), strict=True):
        steps = [step for step, loss in _losses(run).items() if not math.isfinite(loss)]
        if steps:
            notes.append(
                f"{name}: the loss is not a number in {len(steps)} steps, from {steps[0]}."
            )
    return tuple(notes)


@styled
def throughput(*runs: Run) -> Figure:
    """Samples per second after warm-up: the median as a bar, the quartiles as its error bar.

    Tokens per second stand below each value.
    """
    _check(runs)
    figure, axes = begin("Training speed, all ranks together", _height(runs))
    says = []
    for place, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        measured = summary.measures(run.steps)
        samples, tokens = measured["samples_per_second"], measured["tokens_per_second"]
        spread = [
            [samples["median"] - samples["q25"]],
            [samples["q75"] - samples["median"]],
        ]
        _bar(axes, place, samples["median"], run, xerr=spread)
        lines = [f"{number(samples['median'])} samples/s", f"{number(tokens['median'])} tokens/s"]
        _value(axes, place, samples["q75"], lines)
        says.append(f"{name} {lines[0]} ({number(samples['q25'])} to {number(samples['q75'])})")
    _rows(axes, names(runs), max(bar.get_width() for bar in axes.patches))
    axes.set_xlabel("samples per second")
    note = "Bar: median of the steps after warm-up. Line: from the first quartile to the third."
    return finish(figure, runs, f"Median (quartiles): {'; '.join(says)}.", (note,))


def _height(rows, each: float = 0.75) -> float:
    """Inches for a figure of so many rows."""
    return max(5.0, 2.3 + each * len(rows))


def _bar(axes, place: float, value: float, run: Run, **look):
    """A horizontal bar: blue for CPU ranks, orange for GPUs, hatched for more ranks than cores."""
    look = {"height": 0.55, "ecolor": BLACK, "capsize": 6, **look}
    look.setdefault("color", ORANGE if device_word(run) == "GPU" else SKY)
    if run.oversubscribed:
        look |= {"hatch": CROWDED_HATCH, "edgecolor": INK, "linewidth": 0.8}
    return axes.barh(place, value, error_kw={"elinewidth": 2.5, "capthick": 2.5}, **look)


def _value(axes, place: float, x: float, lines: list[str]) -> None:
    """The value right of its bar: the first line bold, the second small below it."""
    offsets = (0,) if len(lines) == 1 else (9, -10)
    looks = ({"fontweight": "bold"}, {"fontsize": SMALL})
    for line, offset, look in zip(lines, offsets, looks, strict=False):
        look |= {"va": "center", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
        axes.annotate(line, (x, place), (12, offset), textcoords="offset points", **look)


def _rows(axes, labels: list[str], largest: float) -> None:
    """One row for each label, the first on top, with room for the values on the right."""
    axes.set_yticks(range(len(labels)), [_two_lines(label) for label in labels])
    beside = max(0.6, 1.5 - len(labels) / 2)  # a bar alone stays a bar
    axes.set_ylim(len(labels) - 1 + beside, -beside)
    axes.set_xlim(0, 1.5 * largest or 1)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.grid(axis="x")


def _two_lines(label: str) -> str:
    """A long label broken before its parenthesis."""
    return label.replace(" (", "\n(", 1) if len(label) > 20 else label


@styled
def scaling(*runs: Run, kind: str = "strong") -> Figure:
    """Speed-up against the ideal, and efficiency, over the number of ranks.

    kind: "strong" (one global batch for all) or "weak" (one batch per rank for all). Speed-up is
    the ratio of samples per second to those of one rank of the same strategy, or else of the first
    run with one rank; efficiency is speed-up per rank. Each needs a run with one rank.

    Runs with more ranks than cores are left out, and named at the foot.

    Raises ValueError where the runs do not fit the kind, or are not of one machine and model.
    """
    _check(runs)
    kept = [run for run in runs if not run.oversubscribed]
    _check_scaling(kept, kind)
    curves = _curves(kept)
    figure, (left, right) = begin(_SCALING_TITLES[kind], 4.7 + 0.2 * len(curves), ncols=2)
    worlds = sorted({run.world for run in kept})
    left.plot(worlds, worlds, color=PALE, linestyle="--", label="ideal")
    right.plot(worlds, [100] * len(worlds), color=PALE, linestyle="--")
    says = [
        _draw_curve(left, right, position, name, curve, alone=len(curves) == 1)
        for position, (name, curve) in enumerate(curves.items())
    ]
    _finish_scaling(left, right, worlds, kept[0])
    legend(figure, left.get_lines())
    missing = _left_out(runs, curves)
    per = "in all" if kind == "strong" else "per rank"
    batch = f"Batch: {_work(kept[0], kind):g} samples {per}. Medians after warm-up."
    says = " ".join([f"Speed-up over one rank: {'; '.join(says)}.", *missing])
    return finish(figure, runs, says, (*missing, batch))


def _left_out(runs, curves) -> list[str]:
    """A sentence on the runs with more ranks than cores, one on those that no curve begins with."""
    crowded = [run for run in runs if run.oversubscribed]
    drawn = [run for curve in curves.values() for run in curve]
    unused = [run for run in runs if run not in drawn and run not in crowded]
    sentences = []
    for group, why in (
        (crowded, "More ranks than cores measure no scaling."),
        (unused, "The curves begin with other runs on 1 rank."),
    ):
        if group:
            which = [run.label.split(" (")[0].replace(", ", " on ") for run in group]
            sentences.append(f"Left out: {listed(which)}. {why}")
    return sentences


_SCALING_TITLES = {
    "strong": "More ranks share the same batch: how much faster?",
    "weak": "More ranks, each with its own batch: how much faster?",
}


def _work(run: Run, kind: str) -> float:
    """What must be the same for all runs: the global batch, or the batch of one rank."""
    batch = run.config["global_batch"]
    return batch if kind == "strong" else batch / run.world


def _check_scaling(runs, kind: str) -> None:
    """Raise ValueError unless the runs measure this kind of scaling."""
    if kind not in _SCALING_TITLES:
        raise ValueError(f"kind={kind!r}: expected 'strong' or 'weak'")
    if not any(run.world == 1 for run in runs):
        given = "; ".join(run.label for run in runs) or "only runs with more ranks than cores"
        raise ValueError(
            f"speed-up is measured against one rank, and no run with one rank was given ({given}). "
            "Launch one with ranks=1 and the same flags, and give it too."
        )
    _check_same(runs, device_word, "on one kind of device")
    _check_same(runs, lambda run: run.origin.split(", torch")[0], "on one machine")
    for name in ("model", "size", "dtype", "cores_per_rank"):
        _check_same(runs, lambda run, name=name: run.config[name], f"with one {name}")
    what = "batch per rank" if kind == "weak" else "global batch"
    other = "strong" if kind == "weak" else "weak"
    advice = f"Launch all with the same {what}, or see whether kind={other!r} fits."
    _check_same(runs, lambda run: _work(run, kind), f"with the same {what}", advice)
    pairs = [(run.strategy, run.world) for run in runs]
    if twice := [pair for pair in pairs if pairs.count(pair) > 1]:
        raise ValueError(
            f"{twice[0][0]} was given more than once with {twice[0][1]} rank(s): expected one run "
            "of a strategy for each number of ranks. Leave the others out."
        )


def _check_same(runs, value, what: str, advice: str = "Draw the others in a figure of their own."):
    found = {}
    for run in runs:
        found.setdefault(value(run), run)
    if len(found) > 1:
        given = ", ".join(f"{number(key)} ({run.label})" for key, run in found.items())
        raise ValueError(f"the runs don't fit: expected all {what}, given {given}. {advice}")


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
    look = {
        "color": COLOURS[position % len(COLOURS)],
        "marker": MARKERS[position % len(MARKERS)],
        "linestyle": ("-", (0, (5, 1.5)), (0, (1.5, 1)))[position % 3],
    }
    left.plot(worlds, speedups, label=strategy + other, **look)
    percents = [100 * speedup / world for speedup, world in zip(speedups, worlds, strict=True)]
    right.plot(worlds, percents, **look)
    words = [f"{speedup:.2f} on {world}" for speedup, world in zip(speedups, worlds, strict=True)]
    if alone and len(curve) > 1:
        _mark(left, worlds[-1], speedups[-1], f"{speedups[-1]:.2f}×")
        _mark(right, worlds[-1], percents[-1], f"{percents[-1]:.0f} %")
    return f"{strategy}{other} {', '.join(words[1:])}" if len(curve) > 1 else f"{strategy} 1 on 1"


def _mark(axes, x: float, y: float, text: str) -> None:
    axes.annotate(
        text, (x, y), (0, -26), textcoords="offset points", ha="center", fontweight="bold"
    )


def _finish_scaling(left, right, worlds: list[int], run: Run) -> None:
    cores = run.config["cores_per_rank"]
    core = "1 core" if cores == 1 else f"{cores} cores"
    unit = "GPUs, one rank each" if device_word(run) == "GPU" else f"CPU ranks, {core} each"
    room = 0.08 * worlds[-1]
    for axes in (left, right):
        axes.set_xticks(worlds)
        axes.set_xlim(1 - room, worlds[-1] + 2 * room)
        axes.set_xlabel(unit)
        axes.grid(axis="y")
    left.set_ylabel("speed-up (×)")
    left.set_ylim(0, 1.1 * max(y for line in left.lines for y in line.get_ydata()))
    right.set_ylabel("efficiency (%)")
    right.set_ylim(0, 1.1 * max(y for line in right.lines for y in line.get_ydata()))


@styled
def memory(*runs: Run) -> Figure:
    """What fills each rank's memory: parameters, gradients, optimizer state, activations, stacked.

    Counted from live tensors, in MB (10^6 bytes) or GB. The peak of the rank is a text: on a CPU it
    is the resident memory of the whole process with its libraries, on a GPU what torch held there.
    Ranks of one run with equal bytes share a bar if there are more than four.
    """
    _check(runs, needs="ranks")
    bars = _memory_bars(runs)
    figure, axes = begin("What fills the memory of each rank", _height(bars, 0.62) + 0.4)
    largest = max(sum(_kind_bytes(rank)) for _, _, rank in bars)
    scale, unit = _unit(largest)
    for place, (_, run, rank) in enumerate(bars):
        total = sum(_kind_bytes(rank))
        _stack(axes, place, rank, scale)
        peak = f"{_peak_word(run)} {_bytes(rank['peak_bytes'])}"
        _value(axes, place, total / scale, [_bytes(total), peak])
    _rows(axes, [label for label, _, _ in bars], largest / scale)
    axes.set_xlabel(f"memory of one rank ({unit})")
    legend(figure, _kind_patches())
    return finish(figure, runs, f"Memory of one rank: {_memory_words(bars)}.", _peak_notes(runs))


def _kind_bytes(rank: dict) -> list[int]:
    return [rank[key] for key, _, _ in KINDS.values()]


def _memory_bars(runs) -> list[tuple[str, Run, dict]]:
    """(label, run, the rank's record) of each bar."""
    bars = []
    for run, name in zip(runs, names(runs), strict=True):
        of_ranks = f", {run.world} ranks"
        equal = len({tuple(_kind_bytes(rank)) for rank in run.ranks}) == 1
        if equal and len(run.ranks) > 4:
            largest = max(run.ranks, key=lambda rank: rank["peak_bytes"])
            bars.append((name.replace(of_ranks, f", each of {run.world} ranks"), run, largest))
            continue
        for rank in run.ranks:
            one = f", rank {rank['rank']} of {run.world}"
            bars.append((name.replace(of_ranks, one), run, rank))
    return bars


def _memory_words(bars) -> str:
    """The bytes of each bar in words; bars of one run that are equal are told once."""
    told = {}
    for label, run, rank in bars:
        told.setdefault((run.folder, *_kind_bytes(rank)), []).append(label)
    words = []
    for (_, *sizes), labels in told.items():
        parts = ", ".join(f"{kind} {_bytes(size)}" for kind, size in zip(KINDS, sizes, strict=True))
        others = f" and {len(labels) - 1} more like it" if len(labels) > 1 else ""
        words.append(f"{labels[0]}{others} {_bytes(sum(sizes))} ({parts})")
    return "; ".join(words)


def _stack(axes, place: int, rank: dict, scale: float) -> None:
    left = 0.0
    for (_, colour, hatch), size in zip(KINDS.values(), _kind_bytes(rank), strict=True):
        look = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.8}
        axes.barh(place, size / scale, left=left, height=0.6, **look)
        left += size / scale


def _kind_patches() -> list[Patch]:
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor=INK, label=kind)
        for kind, (_, colour, hatch) in KINDS.items()
    ]


def _peak_word(run: Run) -> str:
    return "GPU peak" if device_word(run) == "GPU" else "process peak"


def _peak_notes(runs) -> tuple[str, ...]:
    notes = {
        "CPU": "Process peak: all that the process had in memory, its libraries included.",
        "GPU": "GPU peak: the most that torch held on the GPU at one time.",
    }
    return tuple(notes[word] for word in dict.fromkeys(device_word(run) for run in runs))


def _unit(largest: float) -> tuple[float, str]:
    """(bytes in one unit, its name) that suits values up to `largest` bytes; powers of 1000."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= scale:
            return scale, unit
    return 1.0, "bytes"


def _bytes(size: float) -> str:
    scale, unit = _unit(size)
    return f"{size / scale:.3g} {unit}" if size < 999.5 * scale else f"{size / scale:.0f} {unit}"


@styled
def timeline(run: Run) -> Figure:
    """When each rank computed and communicated in the traced step, in ms, one lane for each.

    Where both were busy at once a dark bar joins the lanes. Needs a run with trace_step=, else
    FileNotFoundError; ranks whose trace the record lacks are named at the foot.
    """
    _check((run,))
    traces, missing = _traces(run)
    ranks = "1 rank" if run.world == 1 else f"{run.world} ranks"
    figure, axes = begin(
        f"One step of {run.strategy} on {ranks}: computing and communicating",
        max(4.2, 2.2 + 1.0 * len(traces)),
    )
    says = [_draw_lanes(axes, place, *item) for place, item in enumerate(traces.items())]
    axes.set_yticks(range(len(traces)), [f"rank {rank}" for rank in traces])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(traces) - 0.42, -0.58)
    axes.set_xlim(0, 1e3 * max(trace["seconds"] for trace in traces.values()))
    axes.set_xlabel("milliseconds since the step began")
    axes.grid(axis="x")
    notes = ["Black between the lanes: both at once. Communicating includes waiting for others."]
    if missing:
        notes.append(f"No trace was recorded of rank {listed(missing)}.")
    return finish(figure, (run,), f"One step of {run.label}: {'; '.join(says)}.", tuple(notes))


def _traces(run: Run) -> tuple[dict[int, dict], list[int]]:
    """The traces by rank, and the ranks without one."""
    traces, missing = {}, []
    for rank in range(run.world):
        try:
            traces[rank] = run.timeline(rank)
        except FileNotFoundError:
            missing.append(rank)
    if not traces:
        run.timeline(0)  # says what to do
    return traces, missing


def _draw_lanes(axes, place: int, rank: int, trace: dict) -> str:
    """Both lanes of one rank and the overlap between them, each with its milliseconds beside it."""
    compute, communicate = trace["compute"], trace["communicate"]
    overlap = intervals.overlap_seconds(compute, communicate)
    words = []
    for does, busy, seconds, offset, height, colour in (
        ("computes", compute, intervals.total_seconds(compute), -0.25, 0.36, BLUE),
        ("both at once", _both(compute, communicate), overlap, 0, 0.14, BLACK),
        ("communicates", communicate, intervals.total_seconds(communicate), 0.25, 0.36, VERMILLION),
    ):
        spans = [(start / 1e3, (end - start) / 1e3) for start, end in busy]
        low = place + offset - height / 2
        axes.broken_barh(spans, (low, height), facecolors=colour, linewidth=0, label=does)
        words.append(f"{does} {1e3 * seconds:.1f} ms")
        across = axes.get_yaxis_transform()
        axes.text(1.02, place + offset, words[-1], transform=across, va="center", fontsize=SMALL)
    return f"rank {rank} {', '.join(words)}"


def _both(a, b) -> list[tuple[float, float]]:
    """The intervals in which both lists are busy."""
    overlaps = [(max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b]
    return [(start, end) for start, end in overlaps if start < end]


@styled
def sent_bytes(*runs: Run) -> Figure:
    """Bytes that a rank sends in a step: by formula, and as counted (the mean over the ranks).

    The formula is that of a ring all-reduce of the gradients, 2(N-1)/N times their bytes. What GPUs
    exchange passes by the kernel's count, so their runs say "not counted here", as do runs whose
    record holds no count.
    """
    _check(runs, needs="ranks")
    figure, axes = begin("Bytes that one rank sends in each step", _height(runs, 0.95))
    pairs = [(run.predicted_sent_bytes_per_step, _counted(run)) for run in runs]
    largest = max(value for pair in pairs for value in pair if value is not None)
    scale, unit = _unit(largest)
    says = []
    for place, (run, (formula, counted)) in enumerate(zip(runs, pairs, strict=True)):
        _bar(axes, place - 0.2, formula / scale, run, height=0.36, color="#D0D0D0")
        _value(axes, place - 0.2, formula / scale, [f"formula {_bytes(formula)}"])
        words = "not counted here" if counted is None else f"counted {_bytes(counted)}"
        if counted is not None:
            _bar(axes, place + 0.2, counted / scale, run, height=0.36)
        _value(axes, place + 0.2, (counted or 0) / scale, [words])
        says.append(f"formula {_bytes(formula)}, {words}")
    _rows(axes, names(runs), largest / scale)
    axes.set_xlabel(f"sent by one rank in one step ({unit})")
    note = "Formula 2(N-1)/N × bytes of the gradients: a ring all-reduce over N ranks."
    labelled = zip(names(runs), says, strict=True)
    words = "; ".join(": ".join(pair) for pair in labelled)
    return finish(figure, runs, f"Sent by one rank per step: {words}.", (note,))


def _counted(run: Run) -> float | None:
    """Mean over the ranks; None where a rank has no count, and on GPUs, whose traffic has none."""
    counts = [rank["sent_bytes_per_step"] for rank in run.ranks]
    if run.device == "cuda" or None in counts:
        return None
    return sum(counts) / len(counts)


@styled
def achieved(*runs: Run, peak_flops_per_second: float) -> Figure:
    """Share of the machine's matrix multiply that the training's own arithmetic reaches, in %.

    peak_flops_per_second: what a matrix multiply reaches on one rank's device
    (peak.matmul_flops_per_second). A run with N ranks is held against N times that; with more ranks
    than cores, against what the cores reach.

    Raises ValueError where the runs' devices, dtypes or cores per rank differ: one peak fits one.
    """
    _check(runs)
    if not 0 < peak_flops_per_second < math.inf:
        raise ValueError(f"peak_flops_per_second={peak_flops_per_second}: expected more than zero")
    _check_same(runs, device_word, "on one kind of device")
    for name in ("dtype", "cores_per_rank"):
        _check_same(runs, lambda run, name=name: run.config[name], f"with one {name}")
    figure, axes = begin("How much of the machine's arithmetic the training uses", _height(runs))
    says = []
    for place, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        peak = _devices(run) * peak_flops_per_second
        share = 100 * run.achieved_flops_per_second / peak
        _bar(axes, place, share, run)
        words = f"{_flops(run.achieved_flops_per_second)}\nof {_flops(peak)}"
        _value(axes, place, share, [f"{share:.0f} %"])
        axes.text(
            1.02, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL
        )
        says.append(f"{name} {share:.0f} % ({words})".replace("\n", " "))
    _rows(axes, names(runs), 0)
    axes.set_xlim(0, 1.15 * max(100, *(bar.get_width() for bar in axes.patches)))
    axes.axvline(100, color=BLACK, linestyle="--", linewidth=2)
    above = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
    axes.annotate("matrix multiply", (100, 1), (0, 5), ha="center", **above)
    axes.set_xlabel("% of the floating-point operations per second of a matrix multiply")
    note = f"100 %: a matrix multiply on the same ranks, {_flops(peak_flops_per_second)} each."
    return finish(figure, runs, f"Share of a matrix multiply's speed: {'; '.join(says)}.", (note,))


def _devices(run: Run) -> int:
    """Devices that the ranks compute on: one each, or the cores there are."""
    if not run.oversubscribed:
        return run.world
    return max(1, run.config["machine"]["cores"] // run.config["cores_per_rank"])


def _flops(value: float) -> str:
    for scale, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if value >= scale:
            return f"{number(value / scale)} {unit}"
    return f"{number(value / 1e6)} MFLOP/s"


def _check(runs, needs: str = "summary") -> None:
    """Raise unless these are runs whose record holds what a figure draws.

    needs: "steps" (any losses will do), else a run that ended well with every rank's record.
    """
    if not runs:
        raise ValueError("expected at least one run, given none")
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(f"expected runs one after another (*runs), given {type(run).__name__}")
        if needs != "steps" and run.status != "ok":
            raise ValueError(
                f"{run.folder.name} ended with status {run.status}, expected ok. "
                "Launch it again, or leave it out."
            )
        if not run.steps or any(loss is None for loss in run.losses):
            raise ValueError(
                f"{run.folder.name} recorded no losses: it ended before its first step, or was a "
                "rehearsal without numbers (device meta). Launch it on a device, or leave it out."
            )
        if needs == "ranks" and not run.ranks:
            raise ValueError(f"{run.folder.name} holds no record of a rank: launch it again.")


@styled
def all_reduce_sweep(sweep, fit) -> Figure:
    """Time of an all-reduce by its size with the line fitted to it; bus bandwidth beside it.

    sweep: a link.Sweep. fit: its link.Fit, of the fastest call. Sizes that were fitted, held out
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
    error = (
        f"On the sizes held out it is off by {100 * off['median']:.0f} % (median) and by "
        f"{100 * off['largest']:.0f} % at most."
    )
    line = f"Fitted line: {_fit_words(fit)}. {error}"
    points = f"Points: the fastest of {sweep.config['rounds']} calls, on its slowest rank."
    bandwidth = f"{points} Bus bandwidth: bytes / seconds × 2(N-1)/N, as nccl-tests defines it."
    says = f"All-reduce over {sweep.world} ranks with {sweep.backend}. {line}"
    return finish(figure, [sweep], says, (line, bandwidth))


def _sweep_panel(axes, sweep, fit, value) -> None:
    """The points of a sweep and the fitted line as value(bytes, seconds), by size."""
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
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(SWEEP_TICKS), SWEEP_TICKS.values())
    axes.set_xlabel("bytes that are added up")
    axes.minorticks_off()
    axes.grid()


SWEEP_TICKS = {4: "4 B", 2**10: "1 KiB", 2**15: "32 KiB", 2**20: "1 MiB", 2**25: "32 MiB"}


def _sizes(rows: list[dict]) -> list[int]:
    return [row["bytes"] for row in rows]


def _fit_words(fit) -> str:
    """The line as a sentence that a reader can compute with."""
    words = f"{1e6 * fit.alpha_seconds:.0f} µs (alpha) + bytes {_rate(fit.beta_seconds_per_byte)}"
    if fit.knee_bytes is None:
        return f"{words} (1/beta)"
    beyond = _rate(fit.beyond_seconds_per_byte)
    return f"{words} (1/beta), those beyond {fit.knee_bytes / 2**20:g} MiB {beyond}"


def _rate(seconds_per_byte: float) -> str:
    return f"at {1e-9 / seconds_per_byte:.2g} GB/s" if seconds_per_byte else "for nothing"


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
    shares = [f"{row['name']} {_share_of_roof(measured, row)}" for row in points]
    says = (
        f"Roof: {_flops(measured.peak_flops_per_second)} and "
        f"{_bytes(measured.bandwidth_bytes_per_second)}/s, which meet at {measured.ridge:.1f} "
        f"operations per byte. Reached of the roof: {'; '.join(shares)}."
    )
    finish(figure, [measured], says, _roofline_notes(measured))
    _label_points(figure, axes, measured, dict(zip(shares, points, strict=True)))
    return figure


def _share_of_roof(measured, row: dict) -> str:
    return f"{100 * row['achieved_flops_per_second'] / measured.roof(row['intensity']):.0f} %"


def _roofline_notes(measured) -> tuple[str, ...]:
    config = measured.config
    work = (
        f"GPT {config['size']}, {config['global_batch']} samples, {config['dtype']}. Per cent: of "
        "the roof above the point. Bytes: every operand read once, every result written once."
    )
    hollow = (
        "Hollow: all bytes fit in the last cache "
        f"({_bytes(measured.cache_bytes or 0)}), so memory is no limit and 100 % can be passed."
    )
    return (work, hollow) if any(row["fits_in_cache"] for row in measured.operations) else (work,)


def _draw_roof(axes, measured) -> None:
    """The roof as one line, its two parts named, with room around the operations."""
    top, ridge = measured.peak_flops_per_second, measured.ridge
    intensities = [row["intensity"] for row in measured.operations]
    lowest = min(row["achieved_flops_per_second"] for row in measured.operations)
    left, right = min(*intensities, ridge) / 4, max(*intensities, ridge) * 4
    bottom = min(lowest, measured.roof(left)) / 2
    line = [left, ridge, right], [measured.roof(left), top, top]
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, 3 * top))
    axes.plot(*line, color=BLACK)
    axes.fill_between(*line, bottom, color="#F3F3F3", linewidth=0)
    axes.set_xlabel("arithmetic intensity: operations for each byte moved (FLOP/B)")
    axes.set_ylabel("operations per second (FLOP/s)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e9:,g} G")
    axes.grid()


# Where a label may stand from its point, in typographic points, the nearest first.
LABEL_PLACES = [(11, 0), (-11, 0), (0, -19), (0, 19)] + [
    (side * across, above * up)
    for across, up in ((11, 16), (20, 34), (30, 52), (45, 75), (60, 100))
    for above in (-1, 1)
    for side in (1, -1)
]


def _label_points(figure, axes, measured, labels: dict[str, dict]) -> None:
    """Each label beside its point, where it covers no other label, no point and not the roof."""
    figure.draw_without_rendering()  # from here on it is known where everything lies
    points = [(row["intensity"], row["achieved_flops_per_second"]) for row in labels.values()]
    taken = [_around(axes, point, 11) for point in points]
    low, high = (math.log(limit) for limit in axes.get_xlim())
    along = [math.exp(low + (high - low) * k / 400) for k in range(401)]
    taken += [_around(axes, (x, measured.roof(x)), 3) for x in along]
    _name_roof(axes, measured, along, taken)
    for label, point in zip(labels, points, strict=True):
        _place_label(axes, label, point, taken)


def _name_roof(axes, measured, along: list[float], taken: list[Bbox]) -> None:
    """Name the two parts of the roof, each above its line where no point lies."""
    flat = [x for x in along if x > measured.ridge][::-1]
    slanted = [x for x in along if x < measured.ridge]
    memory = f"memory:\n{_bytes(measured.bandwidth_bytes_per_second)}/s"
    arithmetic = f"arithmetic: {_flops(measured.peak_flops_per_second)}"
    for words, places, offset in ((arithmetic, flat, (-4, 8)), (memory, slanted, (-10, 10))):
        text = axes.annotate(words, (1, 1), offset, textcoords="offset points", ha="right")
        text.set(fontweight="bold", in_layout=False)
        for x in places:
            text.xy = (x, measured.roof(x))
            if _is_free(axes, box := text.get_window_extent(), taken):
                break
        taken.append(box)


def _is_free(axes, box: Bbox, taken: list[Bbox]) -> bool:
    """Whether a box lies within the axes and over nothing else."""
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
    taken.append(box)
    if abs(up) > 19:
        line = {"arrowstyle": "-", "color": PALE, "shrinkA": 0, "shrinkB": 5, "linewidth": 1}
        look = {"textcoords": "offset points", "arrowprops": line, "in_layout": False}
        axes.annotate("", point, (right, up), **look)
