"""When each rank computed, waited and sent in one traced step."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import margin, rows
from bootcamp.drawing.palette import BLACK, BLUE, INK, LIGHT, VERMILLION
from bootcamp.drawing.plots.run_bars import check
from bootcamp.drawing.style import begin, finish, listed, styled
from bootcamp.records import trace as intervals
from bootcamp.records.runs import Run

APART = (
    "Hatched: waiting until the last rank has entered the collective. "
    "Black: both at once, computing hides sending."
)
NOT_APART = (
    "Black: both at once. Communicating includes waiting for other ranks, which is told apart "
    "only where all ranks were traced and took part in the same collectives."
)


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
    for does, busy, offset, height, look in (
        ("computes", step["compute"], -0.25, 0.36, {"facecolors": BLUE}),
        ("both at once", hidden, 0, 0.14, {"facecolors": BLACK}),
        (sends, step["sending"], 0.25, 0.36, {"facecolors": VERMILLION}),
        ("waits", step["waiting"], 0.25, 0.36, {"facecolors": LIGHT.orange, "hatch": "//"}),
    ):
        spans = [((begins + start) / 1e3, (end - start) / 1e3) for start, end in busy]
        look = {"linewidth": 0, "edgecolors": INK, **look}
        axes.broken_barh(spans, (row + offset - height / 2, height), label=does, **look)
        words.append(f"{does} {1e3 * intervals.total_seconds(busy):.1f} ms")
    beside = [*words[:2], ", ".join(words[2:] if step["apart"] else words[2:3])]
    for text, offset in zip(beside, (-0.25, 0, 0.25), strict=True):
        margin(axes, row + offset, text)
    return f"rank {rank} {', '.join(beside)}"
