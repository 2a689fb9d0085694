"""Lesson 04: what DDP's ranks hold, buckets and the backward, and a ring."""

from matplotlib.figure import Figure

from bootcamp.costs import collectives
from bootcamp.drawing.canvas import arrow, arrows, box, boxes, canvas, diagram, label, labels
from bootcamp.drawing.palette import BLUE, LIGHT, PALE, SKY, VERMILLION
from bootcamp.drawing.style import styled


@diagram("One step on two ranks: what each of them holds", 3.7)
def who_holds_what(axes) -> None:
    """Each of two ranks holds the whole model, and gets another share of the global batch. Each
    computes gradients of its own. An all-reduce gives both ranks the mean of the gradients. Each
    runs its own optimizer, with its own state, and both arrive at the same parameters.
    """
    parts = (
        (12, 16, "share of the\nglobal batch", LIGHT.orange),
        (32, 14, "the whole\nmodel", LIGHT.blue),
        (50, 13, "own\ngradients", LIGHT.orange),
        (84, 15, "own optimizer,\nown state", LIGHT.blue),
    )
    for rank, (y, near, middle) in enumerate(((26, 26, 20.5), (3, 12, 15.5))):
        label(axes, 5, y + 4.5, f"rank {rank}", bold=True, size=14)
        boxes(axes, y, 9, *parts)
        arrows(axes, (28.3, y + 4.5, 31.7, y + 4.5), (46.3, y + 4.5, 49.7, y + 4.5))
        arrows(axes, (57, near, 65.3, middle), (81.8, middle, 90, near), colour=VERMILLION)
    box(axes, 66, 12.5, 15.5, 11, "all-reduce:\nmean of the\ngradients", colour=LIGHT.green)
    compared = (20, 18, "different"), (39, 18, "equal"), (56.5, 18, "different")
    labels(axes, *compared, (94.5, 18, "equal"), bold=True)


@diagram("When do the gradients travel? (not to scale)", 4.4)
def overlap(axes) -> None:
    """Two time lines of one step, not to scale. By hand: forward, then backward from the last layer
    to the first, then one all-reduce after another, then the optimizer. With buckets: as soon as
    the backward has filled a bucket, its all-reduce begins while the backward goes on, and only the
    last bucket is waited for. The step ends earlier.
    """
    by_hand = "by hand: one all-reduce per parameter, after the backward"
    _lanes(axes, 34, by_hand, [(63 + 3 * number, 2.5, "") for number in range(9)], 91)
    ddp = "DistributedDataParallel: buckets, while the backward goes on"
    _lanes(axes, 14.3, ddp, [(40, 10.5, "bucket 0"), (51, 10.5, "bucket 1"), (62, 8, "last")], 71)
    arrow(axes, (80.5, 17.3), (100.3, 17.3), style="<->", colour=BLUE)
    label(axes, 90.5, 19.7, "time saved", ink=BLUE, bold=True)
    arrow(axes, (16, 4), (100.3, 4), colour=PALE)
    label(axes, 97, 1.8, "time")


def _lanes(axes, y: float, name: str, reduces: list[tuple], optimizer: float) -> None:
    label(axes, 0, y + 8, name, at="left", bold=True)
    labels(axes, (0, y + 3, "computes"), (0, y - 4, "communicates"), at="left")
    box(axes, 16, y, 13, 6, "forward", colour=LIGHT.blue, size=11)
    backward = (30, 9.5, "backward:\nlast layers"), (40, 10.5, "middle\nlayers")
    boxes(axes, y, 6, *backward, (51, 10.5, "first\nlayers"), colour=SKY, size=11)
    boxes(axes, y - 6.7, 5.5, *reduces, colour=LIGHT.orange, size=11)
    box(axes, optimizer, y, 9, 6, "optimizer", colour=LIGHT.green, size=11)


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


@styled
def ring(ranks: int = 3) -> Figure:
    """A ring all-reduce, piece by piece, as simulated: who holds which sums after each step.

    Each rank cuts its gradient into as many pieces as there are ranks, and sends one piece a step
    to the next rank (Patarasuk and Yuan, 2009). simulators.collective() shows one step at a time.
    """
    run = collectives.simulate("all-reduce", "ring", ranks)
    sent = [{(send.source, send.chunk) for send in step} for step in run.steps]
    held = [[[_piece(s, ranks) for s in chunks.values()] for chunks in now] for now in run.moments]
    title = f"A ring all-reduce on {ranks} ranks: each sends {len(sent)} pieces of 1/{ranks}"
    says = (
        f"Each rank's gradient is cut into {ranks} pieces. In each of {len(sent)} steps every "
        f"rank sends one piece to the next. In the first {ranks - 1} steps the receiver adds it to "
        "its own piece, after which each rank holds one piece summed over all ranks. In the last "
        f"{ranks - 1} steps these sums go round, until every rank has all of them."
    )
    key = "0+2: this piece is the sum of rank 0's and rank 2's."
    return strip(title, says, held, [*sent, set()], key)


def _piece(summed: frozenset, ranks: int) -> tuple[str, str]:
    """Whose contributions a piece holds, and its colour: green when all are in it."""
    colour = LIGHT.green if len(summed) == ranks else LIGHT.orange if len(summed) > 1 else "white"
    return "+".join(map(str, sorted(summed))), colour
