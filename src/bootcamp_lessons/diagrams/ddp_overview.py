"""Lesson 04: what DDP's ranks hold, buckets and the backward."""

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, diagram, label, labels
from bootcamp.drawing.palette import BLUE, LIGHT, PALE, SKY, VERMILLION


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
