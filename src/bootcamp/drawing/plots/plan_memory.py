"""Predicted memory of a GPU by part, for models and plans: bootcamp_lessons.planning's tables."""

from matplotlib.figure import Figure

from bootcamp.drawing.charts import above, handles, margin, rows, stacked
from bootcamp.drawing.palette import BLACK, KINDS, PURPLE
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled

PARTS = {**KINDS, "buffers": (PURPLE, "xx")}
SEEN = 2.5  # GPUs' memories that the axis is long: a longer bar goes on beyond it


@styled
def memory_by_part(table) -> Figure:
    """A stacked bar for each model and plan, with a line at the GPU's memory.

    table: rows of planning.memory_by_part. A bar too long for the axis ends in an arrow; what it
    holds stands beside it.
    """
    lines = list(table)
    gpu_gb = lines[0]["gpu_gb"]
    figure, axes = begin("Predicted: what one GPU holds, part by part", 2.6 + 0.42 * len(lines))
    limit = min(SEEN * gpu_gb, 1.06 * max(gpu_gb, *(line["peak_gb"] for line in lines)))
    said = []
    for row, line in enumerate(lines):
        parts = {kind: line[f"{kind.split()[0]}_gb"] for kind in PARTS}
        stacked(axes, row, parts, 1, limit, PARTS)
        if line["peak_gb"] > limit:
            margin(axes, row, "▶", x=0.985, ha="right", zorder=4)
        fits = "fits" if line["fits"] else "too much"
        margin(axes, row, f"{line['peak_gb']:,.0f} GB: {fits}")
        said.append(f"{line['model']}, {line['plan']}: {line['peak_gb']:,.0f} GB, {fits}")
    rows(axes, [f"{line['model']}, {line['plan']}" for line in lines], beside=0.5)
    axes.axvline(gpu_gb, color=BLACK, linewidth=2, linestyle="--")
    place = {"xycoords": axes.get_xaxis_transform(), "fontsize": SMALL}
    above(axes, gpu_gb, 1, f"{gpu_gb:.0f} GB of the GPU", **place)
    axes.set(xlim=(0, limit), xlabel="GB on one GPU")
    legend(figure, handles(PARTS))
    says = f"Predicted memory of one GPU. {'; '.join(said)}."
    return finish(figure, (), says, ("By formula, nothing here is measured.",))
