"""Predicted memory of a GPU by part, for models and plans: `planning.memory_by_part`'s tables."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import BOLD, above, handles, margin, rows, stacked
from bootcamp.drawing.palette import BLACK, KINDS, PURPLE
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.units import three_digits

PARTS = {**KINDS, "buffers": (PURPLE, "xx")}
SEEN = 2.5  # GPUs' memories that the axis is long at most
NOTES = (
    "By the planner's formulas, nothing here is measured. State: 2 + 2 + 12 bytes a parameter "
    "(AdamW with a float32 copy, arXiv:1910.02054). Activations: arXiv:2205.05198, counted in the "
    "same way for gated MLPs; with them a layer that is computed again.",
    "Buffers: scores of the loss, layers that ZeRO-3 has gathered, what the allocator reserves.",
)


@styled
def memory_by_part(table) -> Figure:
    """A stacked bar for each model and plan, with a line at the GPU's memory.

    table: rows of planning.memory_by_part, those of a model one after another. A bar too long for
    the axis ends in an arrow; what it holds stands beside it.
    """
    lines = list(table)
    gpu, largest = lines[0]["gpu_gb"], max(line["peak_gb"] for line in lines)
    limit = 1.04 * max(gpu, min(largest, SEEN * gpu))
    labels = []
    for line in lines:
        if line["model"] not in labels:
            labels.append(line["model"])
        labels.append(line["plan"])
    figure, axes = begin(
        "Predicted: what one GPU holds, part by part", max(4.0, 2.8 + 0.26 * len(labels))
    )
    rows(axes, labels, beside=0.5)
    taken = iter(lines)
    for row, tick in enumerate(axes.get_yticklabels()):
        tick.set_fontsize(SMALL)
        if tick.get_text() in {line["model"] for line in lines}:
            tick.set(**BOLD)
        else:
            _bar(axes, row, next(taken), limit)
    axes.axvline(gpu, color=BLACK, linewidth=2, linestyle="--", zorder=3)
    words = f"{three_digits(gpu)} GB of a GPU"
    above(axes, gpu, 1, words, xycoords=axes.get_xaxis_transform(), fontsize=SMALL)
    axes.set(xlim=(0, limit), xlabel="GB on one GPU")
    legend(figure, handles(PARTS))
    said = "; ".join(f"{x['model']}, {x['plan']}: {_holds(x)}, {_parts(x)}" for x in lines)
    words = getattr(table, "caption", "")
    notes = (f"{words}.", *NOTES) if words else NOTES
    return finish(figure, (), f"Predicted memory of one GPU. {said}.", notes)


def _bar(axes, row: int, line: dict, limit: float) -> None:
    """One plan's parts, what they are together, and whether they fit."""
    sizes = {kind: line[f"{kind.split()[0]}_gb"] for kind in PARTS}
    beyond = stacked(axes, row, sizes, 1, limit, PARTS) > limit
    margin(axes, row, f"{'▶' if beyond else '   '} {_holds(line)}", x=1.005)


def _holds(line: dict) -> str:
    fits = "fits" if line["fits"] else "does not fit"
    return f"{three_digits(line['peak_gb'])} GB: {fits}"


def _parts(line: dict) -> str:
    return ", ".join(f"{kind} {three_digits(line[f'{kind.split()[0]}_gb'])}" for kind in PARTS)
