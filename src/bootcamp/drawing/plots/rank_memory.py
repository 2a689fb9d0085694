"""What fills the memory of each rank of a run, by kind."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import handles, stacked
from bootcamp.drawing.palette import KINDS
from bootcamp.drawing.plots.run_bars import check, height, run_rows, value
from bootcamp.drawing.style import begin, device_word, finish, legend, styled
from bootcamp.records.runs import Run, names
from bootcamp.units import scale, size

FIELDS = [f"{kind.split()[0].removesuffix('s')}_bytes" for kind in KINDS]
NOTES = {
    "CPU": "Process peak: all that the process had in memory, its libraries included.",
    "GPU": "GPU peak: the most that torch held on the GPU at one time.",
}


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
