"""What each rank of a run holds, and what it does in one step."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import handles, margin, rows, stacked
from bootcamp.drawing.palette import BLACK, BLUE, INK, KINDS, LIGHT, VERMILLION
from bootcamp.drawing.plots.run_bars import check, height, run_rows, value
from bootcamp.drawing.style import begin, device_word, finish, legend, listed, styled
from bootcamp.records import trace as intervals
from bootcamp.records.runs import Run, names
from bootcamp.units import scale, size

FIELDS = [f"{kind.split()[0].removesuffix('s')}_bytes" for kind in KINDS]
NOTES = {
    "CPU": "Process peak: all that the process had in memory, its libraries included.",
    "GPU": "GPU peak: the most that torch held on the GPU at one time.",
}
APART = (
    "Hatched: waiting until the last rank has entered the collective. "
    "Black: both at once, computing hides sending."
)
NOT_APART = (
    "Black: both at once. Communicating includes waiting for other ranks, which is told apart "
    "only where all ranks were traced and took part in the same collectives."
)


@styled
def memory(*runs: Run) -> Figure:
    """What fills each rank's memory: parameters, gradients, optimizer state, activations, stacked.

    Counted from live tensors, in MB (10^6 bytes) or GB. The peak of the rank is a text: on a CPU it
    is the resident memory of the process with its libraries, on a GPU what torch held there.
    Ranks of one run with equal bytes share a bar if there are more than four.
    """
    check(runs, needs="ranks")
    bars = _bars(runs)
    figure, axes = begin("What fills the memory of each rank", height(bars, 0.62) + 0.4)
    largest = max(sum(_sizes(rank).values()) for _, _, rank in bars)
    factor, unit = scale(largest)
    for row, (_, run, rank) in enumerate(bars):
        end = stacked(axes, row, _sizes(rank), factor)
        peak = "GPU peak" if device_word(run) == "GPU" else "process peak"
        lines = [size(sum(_sizes(rank).values())), f"{peak} {size(rank['peak_bytes'])}"]
        value(axes, row, end, lines)
    run_rows(axes, [label for label, _, _ in bars], largest / factor)
    axes.set_xlabel(f"memory of one rank ({unit})")
    legend(figure, handles(KINDS))
    notes = tuple(NOTES[word] for word in dict.fromkeys(map(device_word, runs)))
    return finish(figure, runs, f"Memory of one rank: {_words(bars)}.", notes)


def _sizes(rank: dict) -> dict[str, int]:
    return {kind: rank[field] for kind, field in zip(KINDS, FIELDS, strict=True)}


def _bars(runs) -> list[tuple[str, Run, dict]]:
    bars = []
    for run, name in zip(runs, names(runs), strict=True):
        alike = len({tuple(_sizes(rank).values()) for rank in run.ranks}) == 1
        shown = {f", rank {rank['rank']} of {run.world}": rank for rank in run.ranks}
        if alike and len(run.ranks) > 4:
            largest = max(run.ranks, key=lambda rank: rank["peak_bytes"])
            shown = {f", each of {run.world} ranks": largest}
        for which, rank in shown.items():
            bars.append((name.replace(f", {run.world} ranks", which), run, rank))
    return bars


def _words(bars) -> str:
    """The bytes of each bar in words; equal bars of one run are named once."""
    alike, words = {}, []
    for label, run, rank in bars:
        alike.setdefault((run.folder, *_sizes(rank).values()), []).append(label)
    for (_, *sizes), labels in alike.items():
        parts = ", ".join(f"{kind} {size(each)}" for kind, each in zip(KINDS, sizes, strict=True))
        others = f" and {len(labels) - 1} more like it" if len(labels) > 1 else ""
        words.append(f"{labels[0]}{others} {size(sum(sizes))} ({parts})")
    return "; ".join(words)


@styled
def timeline(run: Run) -> Figure:
    """When each rank computed, waited and sent in the traced step, in ms, two lanes for each.

    Where a rank computed and sent at once a dark bar joins the lanes. Needs a run with
    trace_step=, else FileNotFoundError; ranks whose trace the record lacks are named at the foot.
    """
    check((run,))
    steps = run.timelines() or {0: run.timeline(0)}  # the latter raises, with what to do
    missing = [rank for rank in range(run.world) if rank not in steps]
    apart = all(step["apart"] for step in steps.values())
    title = f"One step of {run.strategy} on {run.world} rank{'s' * (run.world > 1)}"
    figure, axes = begin(title, max(4.4, 2.4 + 1.0 * len(steps)), grid="x")
    first = min(step["began"] for step in steps.values())
    begins = {rank: step["began"] - first if apart else 0.0 for rank, step in steps.items()}
    says = [
        _draw_lanes(axes, row, rank, step, begins[rank])
        for row, (rank, step) in enumerate(steps.items())
    ]
    rows(axes, [f"rank {rank}" for rank in steps], beside=0.58)
    ends = [begins[rank] / 1e3 + 1e3 * step["seconds"] for rank, step in steps.items()]
    axes.set_xlim(0, max(ends))
    axes.set_xlabel(f"milliseconds since {'the first' if apart else 'each'} rank began the step")
    seconds = max(step["seconds"] for step in steps.values())
    notes = [
        APART if apart else NOT_APART,
        f"This step took {1e3 * seconds:.1f} ms, {seconds / run.seconds_per_step:.2f} times the "
        "run's median step: being traced costs time, and steps differ.",
    ]
    if missing:
        notes.append(f"No trace was recorded of rank {listed(missing)}.")
    return finish(figure, (run,), f"One step of {run.label}: {'; '.join(says)}.", tuple(notes))


def _draw_lanes(axes, row: int, rank: int, step: dict, begins: float) -> str:
    """Both lanes of one rank and the overlap between them, each with its milliseconds beside it."""
    hidden = intervals.overlaps(step["compute"], step["sending"])
    words, sends = [], "sends" if step["apart"] else "communicates"
    for does, busy, offset, thick, look in (
        ("computes", step["compute"], -0.25, 0.36, {"facecolors": BLUE}),
        ("both at once", hidden, 0, 0.14, {"facecolors": BLACK}),
        (sends, step["sending"], 0.25, 0.36, {"facecolors": VERMILLION}),
        ("waits", step["waiting"], 0.25, 0.36, {"facecolors": LIGHT.orange, "hatch": "//"}),
    ):
        spans = [((begins + start) / 1e3, (end - start) / 1e3) for start, end in busy]
        look = {"linewidth": 0, "edgecolors": INK, **look}
        axes.broken_barh(spans, (row + offset - thick / 2, thick), label=does, **look)
        words.append(f"{does} {1e3 * intervals.total_seconds(busy):.1f} ms")
    beside = [*words[:2], ", ".join(words[2:] if step["apart"] else words[2:3])]
    for text, offset in zip(beside, (-0.25, 0, 0.25), strict=True):
        margin(axes, row + offset, text)
    return f"rank {rank} {', '.join(beside)}"
