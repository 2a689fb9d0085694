"""Lesson 08c: eight ranks on three axes, and curves that hide a bug."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, diagram, label
from bootcamp.drawing.palette import BLUE, GREEN, PALE, TINTS, VERMILLION
from bootcamp.drawing.style import begin, legend, styled
from bootcamp_lessons.labs import silent


@diagram("Eight ranks: pipeline × data × tensor is 2 × 2 × 2", 4.4)
def mesh(axes) -> None:
    """Two hosts with four ranks each. The left host has the first stage of the pipeline, ranks 0 to
    3, the right one the second stage, ranks 4 to 7. In a host, ranks in a row hold one copy of the
    stage and split its matrices: 0 and 1, 2 and 3; 4 and 5, 6 and 7. They are a tensor group. Ranks
    above each other hold the same part of two copies and average gradients: 0 and 2, 1 and 3; 4 and
    6, 5 and 7. They are a data group. Ranks at the same place of both hosts hand activations over:
    0 and 4, 1 and 5, 2 and 6, 3 and 7.
    """
    for stage in range(2):
        x = 20 + 46 * stage
        box(axes, x - 2, 5, 34, 32, line="--", colour="white")
        label(axes, x + 15, 40, f"host {stage}: stage {stage}", bold=True)
        for rank in range(4):
            row, column = divmod(rank, 2)
            text = f"rank {4 * stage + rank}\npart {column}"
            box(axes, x + 17 * column, 25 - 17 * row, 13, 10, text, colour=TINTS[column])
        rows = ((x + 13.3, y, x + 16.7, y) for y in (30, 13))
        arrows(axes, *rows, style="<->", colour=VERMILLION)
        columns = ((left, 24.7, left, 18.3) for left in (x + 6.5, x + 23.5))
        arrows(axes, *columns, style="<->", colour=BLUE)
    for row, y in enumerate((30, 13)):
        arrow(axes, (52.4, y), (63.6, y), style="<->", colour=GREEN)
        label(axes, 17, y, f"samples\nof share {row}", at="right")
    for x, words, ink in (
        (20, "tensor: activations", VERMILLION),
        (52, "data: gradients", BLUE),
        (82, "pipeline: activations", GREEN),
    ):
        label(axes, x, 1.5, words, ink=ink, bold=True)


@styled
def curves(found: dict | None = None) -> Figure:
    """Draw losses of scripts and their broken copies, of silent.recorded() if not given."""
    found = found or silent.recorded()
    title = "AdamW, 50 steps: the right training, and a broken copy"
    figure, panels = begin(title, 6.2, nrows=2, ncols=3, sharex=True, sharey=True)
    says = []
    for axes, (name, both) in zip(panels.flat, found["curves"].items(), strict=True):
        right, wrong = both["right"], both["wrong"]
        begun = len(right) - len(wrong)
        axes.plot(range(len(right)), right, color=PALE, linewidth=6, label="right")
        axes.plot(range(begun, len(right)), wrong, color=VERMILLION, linewidth=1.6, label="broken")
        gap = silent.apart(both)
        axes.set_title(name.removeprefix("silent_"), fontsize=14, loc="left")
        words = f"apart: {gap['apart']:.2g} at most\na step moves: {gap['moves']:.2g}"
        axes.text(0.97, 0.95, words, transform=axes.transAxes, ha="right", va="top", fontsize=12)
        axes.tick_params(labelsize=12)
        says.append(f"{name}: at most {gap['apart']:.2g} apart")
    for axes in panels[-1]:
        axes.set_xlabel("step", fontsize=13)
    for axes in panels[:, 0]:
        axes.set_ylabel("loss", fontsize=13)
    legend(figure, panels.flat[0].get_legend_handles_labels()[0])
    where = f"Recorded on {found['machine']}, 2 CPU ranks, tiny GPT."
    figure.supxlabel(where, fontsize=11)
    figure.alt = f"Loss curves of six broken copies over the right ones. {'; '.join(says)}. {where}"
    return figure
