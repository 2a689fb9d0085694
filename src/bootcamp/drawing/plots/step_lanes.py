"""When each rank computed and communicated in one traced step."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import margin, rows
from bootcamp.drawing.palette import BLACK, BLUE, VERMILLION
from bootcamp.drawing.plots.run_bars import check
from bootcamp.drawing.style import begin, finish, listed, styled
from bootcamp.records import trace as intervals
from bootcamp.records.runs import Run


@styled
def timeline(run: Run) -> Figure:
    """When each rank computed and communicated in the traced step, in ms, one lane for each.

    Where both were busy at once a dark bar joins the lanes. Needs a run with trace_step=, else
    FileNotFoundError; ranks whose trace the record lacks are named at the foot.
    """
    check((run,))
    traces, missing = _traces(run)
    ranks = "1 rank" if run.world == 1 else f"{run.world} ranks"
    title = f"One step of {run.strategy} on {ranks}: computing and communicating"
    figure, axes = begin(title, max(4.2, 2.2 + 1.0 * len(traces)), grid="x")
    says = [_draw_lanes(axes, row, *item) for row, item in enumerate(traces.items())]
    rows(axes, [f"rank {rank}" for rank in traces], beside=0.58)
    axes.set_xlim(0, 1e3 * max(trace["seconds"] for trace in traces.values()))
    axes.set_xlabel("milliseconds since the step began")
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
        run.timeline(0)  # raises, with what to do
    return traces, missing


def _draw_lanes(axes, row: int, rank: int, trace: dict) -> str:
    """Both lanes of one rank and the overlap between them, each with its milliseconds beside it."""
    compute, communicate = trace["compute"], trace["communicate"]
    words = []
    for does, busy, offset, height, colour in (
        ("computes", compute, -0.25, 0.36, BLUE),
        ("both at once", intervals.overlaps(compute, communicate), 0, 0.14, BLACK),
        ("communicates", communicate, 0.25, 0.36, VERMILLION),
    ):
        spans = [(start / 1e3, (end - start) / 1e3) for start, end in busy]
        low = row + offset - height / 2
        axes.broken_barh(spans, (low, height), facecolors=colour, linewidth=0, label=does)
        words.append(f"{does} {1e3 * intervals.total_seconds(busy):.1f} ms")
        margin(axes, row + offset, words[-1])
    return f"rank {rank} {', '.join(words)}"
