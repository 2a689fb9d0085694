"""A ring all-reduce as a strip: what each rank holds at first and after every step."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, box, canvas, label
from bootcamp.drawing.palette import PALE, VERMILLION


def strip(title: str, says: str, held: list, sent: list[set], key: str) -> Figure:
    """Draw held[moment][rank], pieces as (text, colour), and sent[moment], (rank, piece)."""
    world = len(held[0])
    each, wide = 3 * world + 2.6, 91 / len(held)
    high = 6 + each * world + 9
    figure, axes = canvas(title, says, high / 10)
    for moment, ranks in enumerate(held):
        x = 9 + wide * moment
        words = f"after step {moment}" if moment else "at first"
        label(axes, x + wide / 2 - 1.2, high - 2, words, bold=True)
        for rank, pieces in enumerate(ranks):
            top = high - 5 - each * rank
            if moment == 0:
                label(axes, 3.5, top - 1.5 * world, f"rank {rank}", bold=True)
            for piece, (text, colour) in enumerate(pieces):
                y = top - 3 * (piece + 1)
                box(axes, x, y, wide - 2.5, 2.7, text, colour=colour, size=11)
                if (rank, piece) in sent[moment]:
                    label(axes, x + wide - 1.2, y + 1.3, "▶", ink=VERMILLION, size=11)
    edges = [9 + wide * moment for moment in (1, world, len(held))]
    halves = ("add up: reduce-scatter", "pass on: all-gather")
    for left, end, words in zip(edges, edges[1:], halves, strict=False):
        arrow(axes, (left, 6.8), (end - 2.5, 6.8), style="<->", colour=PALE)
        label(axes, (left + end - 2.5) / 2, 4.6, words)
    way = "▶: it is sent to the next rank now, from the last rank to rank 0."
    label(axes, 0, 1, f"{key}   {way}".strip(), at="left", size=11)
    return figure
