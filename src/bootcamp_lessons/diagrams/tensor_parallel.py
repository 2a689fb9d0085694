"""Diagrams of lessons 06c (tensor and sequence parallelism), 06d (a ring) and 08 (a mesh)."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, canvas, diagram, label, labels
from bootcamp.drawing.palette import BLUE, INK, LIGHT, PALE, TINTS, VERMILLION
from bootcamp.drawing.style import FOOT, styled


@diagram("A column split, then a row split: one sum at the end", 4.3)
def column_then_row(axes) -> None:
    """Both ranks hold the same input x. Rank 0 multiplies it with the left columns of matrix A and
    gets the left part of the hidden activations, rank 1 the right part. Each applies gelu to its
    part, and multiplies it with the rows of matrix B that belong to it: the upper ones on rank 0,
    the lower ones on rank 1. Each result has the full width and is one part of a sum. An all-reduce
    adds the parts, and both ranks hold the same output y.
    """
    for rank, y in enumerate((25, 4)):
        tint = TINTS[rank]
        label(axes, 3.2, y + 6, f"rank {rank}", bold=True, size=14)
        given, added = (8, 9, "x,\nall of it", "white"), (92, 8, "y,\nall of it", "white")
        own = (39, 8, f"x A{rank}", tint), (52, 8, "gelu", tint), (77, 9, "part of\nthe sum", tint)
        boxes(axes, y + 1, 10, given, *own, added)
        box(axes, 21, y - 1, 13, 14, colour="white")
        box(axes, 21 + 6.5 * rank, y - 1, 6.5, 14, f"A{rank}", colour=tint, bold=True)
        box(axes, 64, y - 2, 9, 16, colour="white")
        box(axes, 64, y + 6 - 8 * rank, 9, 8, f"B{rank}", colour=tint, bold=True)
        gaps = (17.2, 20.8), (34.2, 38.8), (47.2, 51.8), (60.2, 63.8), (73.2, 76.8)
        arrows(axes, *((left, y + 6, right, y + 6) for left, right in gaps))
    box(axes, 80, 18.2, 18, 5, "all-reduce: +", colour=LIGHT.green, bold=True)
    sums = (82, 25.8, 83, 23.4), (82, 15.2, 83, 18), (95, 23.4, 96, 25.8), (95, 18, 96, 15.2)
    arrows(axes, *sums, colour=VERMILLION)
    labels(axes, (27.5, 20.7, "columns of A"), (68.5, 20.7, "rows of B"))
    label(axes, 47.5, 20.7, "nothing is sent here", ink=BLUE)


@diagram("One block on one of two ranks: its part of the sequence", 4.0)
def sequence_parallel_block(axes) -> None:
    """Two timelines of one block on one of two ranks. Tensor parallelism: the norm works on the
    full sequence, the attention on this rank's heads, then an all-reduce; again the norm on the
    full sequence, the MLP on this rank's columns and rows, then an all-reduce. Sequence
    parallelism: the norm works on this rank's half of the sequence; an all-gather brings the full
    sequence; the attention works on this rank's heads; a reduce-scatter adds up and leaves half of
    the sequence; and the same around the MLP.
    """
    for y, sequence in ((24, False), (3, True)):
        name = "with sequence parallelism" if sequence else "tensor parallelism"
        label(axes, 0, y + 14, name, at="left", bold=True)
        high = 4 if sequence else 9
        for x, inside in ((0, "attention:\nsome heads"), (50, "MLP: some\ncolumns, rows")):
            box(axes, x, y, 9, high, "norm", colour=LIGHT.blue)
            box(axes, x + 18.3, y, 14, 9, inside, colour=LIGHT.orange)
            box(axes, x + 42, y, 4.6, high, "+", colour=LIGHT.blue)
            if sequence:
                _draw_collective(axes, x + 13.7, y, "all-\ngather")
            else:
                arrow(axes, (x + 9.2, y + 4.5), (x + 18, y + 4.5))
            _draw_collective(axes, x + 37.2, y, "reduce-\nscatter" if sequence else "all-\nreduce")
        arrow(axes, (46.8, y + 2), (49.8, y + 2))
    label(axes, 0, 20.3, "height of a blue box: how much of the sequence", at="left", size=FOOT)
    label(axes, 56, 20.3, "+: the residual is added", at="left", size=FOOT)


def _draw_collective(axes, x: float, y: float, text: str) -> None:
    arrow(axes, (x - 4.3, y + 2), (x + 4.3, y + 2), colour=VERMILLION)
    label(axes, x, y + 6, text, ink=VERMILLION, size=FOOT)


@diagram("A mesh of 2 × 2: data × tensor", 3.8)
def mesh(axes) -> None:
    """A mesh of 2 x 2 ranks: row 0 has the ranks 0, 1; row 1 has the ranks 2, 3. The ranks of a row
    are the GPUs of one host. They split each matrix, train the same samples, and exchange
    activations in every block. The ranks of a column hold the same part of the matrices, sharded
    over them. They train different samples, and gather parameters and average gradients.
    """
    for row, y in enumerate((23, 7.5)):
        box(axes, 13, y - 1.5, 66, 12, line="--", colour="white")
        label(axes, 12, y + 4.5, f"host {row}:\nsamples\nof share {row}", at="right")
        for column, x in enumerate((15, 50)):
            text = f"rank {2 * row + column}\nmatrices: part {column}"
            box(axes, x, y, 27, 9, text, colour=TINTS[column])
    arrows(axes, (42.3, 27.5, 49.7, 27.5), (42.3, 12, 49.7, 12), style="<->", colour=VERMILLION)
    arrows(axes, (28.5, 16.8, 28.5, 22.7), (63.5, 16.8, 63.5, 22.7), style="<->", colour=BLUE)
    tensor = "tensor:\nactivations,\n4 times in\neach block"
    label(axes, 81, 27.5, tensor, at="left", ink=VERMILLION)
    label(axes, 81, 13, "data:\nparameters,\ngradients", at="left", ink=BLUE)


@styled
def ring(orders: dict[str, list[dict]]) -> Figure:
    """Draw whose keys each rank holds in ring attention; orders: {name: each rank's log}."""
    world = len(next(iter(orders.values())))
    most = max(max(rank["computed"]) for ranks in orders.values() for rank in ranks)
    says = ""
    for name, ranks in orders.items():
        shares = [", ".join(f"{part / most:.2f}" for part in rank["computed"]) for rank in ranks]
        each = (f"rank {r['rank']} computed {s}" for r, s in zip(ranks, shares, strict=True))
        total = f"the slowest of each step add up to {sum_slowest(ranks) / most:.2f}"
        says += f" {name}: {'; '.join([*each, total])}."
    title = "Whose keys each rank holds, and how much it computes"
    height = 0.62 * world + 1.5
    figure, axes = canvas(title, f"In units of one complete block:{says}", height)
    top, cell = 10 * height, (50 / len(orders) + 11.5) / world
    for place, (name, ranks) in enumerate(orders.items()):
        left = 52 * place
        label(axes, left, top - 2, name, at="left", bold=True)
        for step in range(world):
            label(axes, left + 8.5 + cell * (step + 0.5), top - 5.5, f"step {step}", size=FOOT)
        for rank in ranks:
            y = top - 12.5 - 6.2 * rank["rank"]
            label(axes, left + 3.5, y + 2.3, f"rank {rank['rank']}", bold=True)
            held = zip(rank["held"], rank["computed"], strict=True)
            for step, (owner, computed) in enumerate(held):
                _draw_block(axes, left + 8.5 + cell * step, y, cell - 0.8, owner, computed / most)
        total = f"the slowest rank of each step, added up: {sum_slowest(ranks) / most:.2f} boxes"
        label(axes, left, 1.5, total, at="left", size=FOOT)
    return figure


def _draw_block(axes, x: float, y: float, room: float, owner: int, share: float) -> None:
    """Draw a frame, filled in proportion to what the rank computed with this owner's keys."""
    box(axes, x, y, room, 5, colour="white", line="-" if share else ":")
    if share:
        box(axes, x, y, share * room, 5, colour=TINTS[owner % len(TINTS)])
    middle = x + room * (share or 1) / 2
    label(axes, middle, y + 2.5, f"{owner}", ink=INK if share else PALE)


def sum_slowest(ranks: list[dict]) -> int:
    """Sum the score entries of each step's slowest rank, which determine the time."""
    return sum(max(step) for step in zip(*(rank["computed"] for rank in ranks), strict=True))
