"""Lessons 00 and 01: the path of a run, the family of scripts, one step, a batch's shares."""

import itertools
import tomllib

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, canvas, diagram, label, labels
from bootcamp.drawing.palette import FOUR, LIGHT, PALE, PAPER, VERMILLION
from bootcamp.drawing.style import styled
from bootcamp.paths import NOTEBOOKS
from bootcamp.scripts import diff, strategies


@diagram("How a run goes", 4.1)
def run_path(axes) -> None:
    """A notebook cell calls launch. A supervisor process starts, watches and ends the ranks, here
    rank 0 and rank 1, which exchange data. The ranks write records into a folder below logs. The
    notebook reads the records and makes tables, plots and proofs of them.
    """
    box(axes, 0, 22, 22, 12, 'a cell\nlaunch("ddp", ranks=2)', colour=LIGHT.blue)
    box(axes, 31, 22, 20, 12, "supervisor\nstarts, watches,\nends the ranks")
    for rank, y in enumerate((30, 17)):
        box(axes, 63, y, 13, 8, f"rank {rank}\none process", colour=LIGHT.green)
        arrows(axes, (51.5, 28, 62.5, (33, 22)[rank]), (76.5, (33, 22)[rank], 84.5, 28))
    box(axes, 85, 21, 14, 14, "logs/<run>/\nthe record", colour=LIGHT.orange)
    box(axes, 31, 2, 20, 9, "table, plot,\nproof", colour=LIGHT.blue)
    arrow(axes, (22.5, 28), (30.5, 28), "asks")
    arrow(axes, (69.5, 29.6), (69.5, 25.4), style="<->", colour=VERMILLION)
    label(axes, 68, 27.5, "exchange\ndata", at="right", ink=VERMILLION, size=11)
    box(axes, 85, 2, 14, 9, "read back", colour="white", line="--")
    arrows(axes, (92, 20.5, 92, 11.5), (84.5, 6.5, 51.5, 6.5))
    places = (11, 37, "the notebook"), (69.5, 39.6, "your cores or GPUs"), (92, 38, "your disk")
    labels(axes, *places, (15.5, 6.5, "the notebook"), bold=True)


PATH = ("cpu", "gpu", "ddp", "fsdp", "hsdp")


@styled
def family_tree() -> Figure:
    """Draw the way from the baseline by parents, with the code lines that each script adds."""
    way = [strategies.SCRIPTS[name] for name in PATH]
    pairs = itertools.pairwise(way)
    adds = {b.name: diff.count_changed_lines(b.path, a.path)[0] for a, b in pairs}
    names = ", ".join(f"_train_{name}.py adds {n} lines to its parent" for name, n in adds.items())
    says = f"The first is _train_cpu.py, the baseline. {names}. Others branch off in the same way."
    figure, axes = canvas("The scripts: each differs from its parent by a few lines", says, 1.9)
    rows = tomllib.loads((NOTEBOOKS / "lessons.toml").read_text())["lesson"]
    lessons = {name: row["number"] for row in rows for name in row.get("scripts", ())}
    width, gap, y = 12.7, 9.0, 9
    for place, name in enumerate(PATH):
        x = place * (width + gap)
        box(axes, x, y, width, 8, name, colour=LIGHT.blue, bold=True, size=18)
        label(axes, x + width / 2, y - 2.6, f"lesson {lessons[name]}")
        if name in adds:
            arrow(axes, (x - gap + 0.4, y + 3), (x - 0.4, y + 3), f"+{adds[name]} lines", above=2.6)
    return figure


@diagram("One training step, and what it keeps in memory", 3.6)
def training_step(axes) -> None:
    """A batch goes through the forward, which makes the loss and keeps activations. The backward
    uses the activations up and makes a gradient for every parameter. The optimizer changes the
    parameters with the gradients and keeps a state of its own. Then the next batch comes.
    """
    parts = (
        (1, 14, "batch\ninputs, targets", PAPER),
        (21, 17, "forward\nmodel(inputs)", LIGHT.blue),
        (44, 12, "loss\none number", LIGHT.blue),
        (61, 16, "backward\nloss.backward()", LIGHT.orange),
        (82, 16, "optimizer\noptimizer.step()", LIGHT.green),
    )
    boxes(axes, 16, 10, *parts)
    for (x, width, *_), (after, *_) in itertools.pairwise(parts):
        arrow(axes, (x + width + 0.5, 21), (after - 0.5, 21))
    kept = (
        (19, 21, "keeps\nactivations"),
        (59, 20, "uses activations up,\nadds to the gradients"),
        (80, 20, "keeps its state,\nchanges parameters"),
    )
    boxes(axes, 1, 8, *kept, size=11, line="--", colour="white")
    for x, width, _ in kept:
        arrow(axes, (x + width / 2, 15.5), (x + width / 2, 9.5), colour=PALE)
    arrow(axes, (90, 26.5), (8, 26.5), bend=0.1)
    label(axes, 50, 32.5, "next step: a new batch, changed parameters", bold=True)
    label(axes, 8, 5, "in memory:", bold=True)


@styled
def batch_shares(shares: dict[int, list[list[int]]]) -> Figure:
    """Draw one global batch shared by ranks: {number of ranks: sample ids of each rank}."""
    says = " ".join(
        f"With {world} rank(s): {'; '.join(f'rank {r} has {ids}' for r, ids in enumerate(ranks))}."
        for world, ranks in shares.items()
    )
    height = 1.15 * len(shares)
    figure, axes = canvas("One global batch, shared by more and more ranks", says, height)
    for row, (world, ranks) in enumerate(shares.items()):
        y, x = 10 * height - 10 - 11.5 * row, 16.0
        label(axes, 7, y + 2.5, f"{world} rank{'s' if world > 1 else ''}", bold=True)
        width = 83 / sum(len(ids) for ids in ranks)
        for rank, ids in enumerate(ranks):
            label(axes, x + width * len(ids) / 2, y + 7, f"rank {rank}")
            for sample in ids:
                box(axes, x, y, width - 0.6, 5, f"{sample}", colour=FOUR[rank % 4], size=11)
                x += width
    return figure
