"""What each rank of a run does in the one step that was traced."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import margin, rows
from bootcamp.drawing.palette import BLACK, BLUE, INK, LIGHT, VERMILLION
from bootcamp.drawing.plots.run_bars import check
from bootcamp.drawing.style import begin, finish, join_words, styled
from bootcamp.records.runs import Run
from bootcamp.records.trace import intersect_intervals, total_seconds

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
    """Draw when each rank computed, waited and sent in the traced step, in ms, on two lanes each.

    Where a rank computed and sent at once a dark bar joins the lanes. Needs a run with
    trace_step=, else FileNotFoundError; ranks whose trace the record lacks are named at the foot.
    """
    check((run,))
    steps = run.timelines()
    apart = all(step["separated"] for step in steps.values())
    title = f"One step of {run.strategy} on {run.world} rank{'s' * (run.world > 1)}"
    figure, axes = begin(title, max(4.4, 2.4 + 1.0 * len(steps)), grid="x")
    first, says, end = min(step["began"] for step in steps.values()), [], 0.0
    for row, (rank, step) in enumerate(steps.items()):
        begins = step["began"] - first if apart else 0.0
        says.append(f"rank {rank} {_draw_lanes(axes, row, step, begins)}")
        end = max(end, begins / 1e3 + 1e3 * step["seconds"])
    rows(axes, [f"rank {rank}" for rank in steps])
    since = f"milliseconds since {'the first' if apart else 'each'} rank began the step"
    axes.set(xlim=(0, end), xlabel=since)
    seconds = max(step["seconds"] for step in steps.values())
    notes = [
        APART if apart else NOT_APART,
        f"This step took {1e3 * seconds:.1f} ms, {seconds / run.seconds_per_step:.2f} times the "
        "run's median step: being traced costs time, and steps differ.",
    ]
    if missing := [rank for rank in range(run.world) if rank not in steps]:
        notes.append(f"No trace was recorded of rank {join_words(missing)}.")
    return finish(figure, (run,), f"One step of {run.label}: {'; '.join(says)}.", tuple(notes))


def _draw_lanes(axes, row: int, step: dict, begins: float) -> str:
    """Draw a rank's lanes and the overlap between them; return the milliseconds of each."""
    hidden = intersect_intervals(step["compute"], step["sending"])
    words, sends = [], "sends" if step["separated"] else "communicates"
    for does, busy, offset, thick, look in (
        ("computes", step["compute"], -0.25, 0.36, {"facecolors": BLUE}),
        ("both at once", hidden, 0, 0.14, {"facecolors": BLACK}),
        (sends, step["sending"], 0.25, 0.36, {"facecolors": VERMILLION}),
        ("waits", step["waiting"], 0.25, 0.36, {"facecolors": LIGHT.orange, "hatch": "//"}),
    ):
        spans = [((begins + start) / 1e3, (end - start) / 1e3) for start, end in busy]
        look = {"linewidth": 0, "edgecolors": INK, **look}
        axes.broken_barh(spans, (row + offset - thick / 2, thick), label=does, **look)
        words.append(f"{does} {1e3 * total_seconds(busy):.1f} ms")
    words = words if step["separated"] else words[:3]
    margin(axes, row - 0.25, words[0])
    margin(axes, row, words[1])
    margin(axes, row + 0.25, ", ".join(words[2:]))
    return ", ".join(words)
