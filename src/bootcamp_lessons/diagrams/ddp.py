"""Lessons 04, 04d and 04e: a step of DDP, buckets, averages, restarts, two hosts, ring and tree."""

from itertools import pairwise

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, diagram, label, labels
from bootcamp.drawing.charts import WHITE, above, bar, rows
from bootcamp.drawing.palette import BLUE, GREEN, LIGHT, PALE, SKY, VERMILLION
from bootcamp.drawing.style import begin, finish, styled
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps


@diagram("One step on two ranks: what each of them holds", 3.7)
def one_step(axes) -> None:
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
    _draw_lanes(axes, 34, by_hand, [(63 + 3 * number, 2.5, "") for number in range(9)], 91)
    ddp = "DistributedDataParallel: buckets, while the backward goes on"
    buckets = [(40, 10.5, "bucket 0"), (51, 10.5, "bucket 1"), (62, 8, "last")]
    _draw_lanes(axes, 14.3, ddp, buckets, 71)
    arrow(axes, (80.5, 17.3), (100.3, 17.3), style="<->", colour=BLUE)
    label(axes, 90.5, 19.7, "time saved", ink=BLUE, bold=True)
    arrow(axes, (16, 4), (100.3, 4), colour=PALE)
    label(axes, 97, 1.8, "time")


def _draw_lanes(axes, y: float, name: str, reduces: list[tuple], optimizer: float) -> None:
    label(axes, 0, y + 8, name, at="left", bold=True)
    labels(axes, (0, y + 3, "computes"), (0, y - 4, "communicates"), at="left")
    box(axes, 16, y, 13, 6, "forward", colour=LIGHT.blue, size=11)
    backward = (30, 9.5, "backward:\nlast layers"), (40, 10.5, "middle\nlayers")
    boxes(axes, y, 6, *backward, (51, 10.5, "first\nlayers"), colour=SKY, size=11)
    boxes(axes, y - 6.7, 5.5, *reduces, colour=LIGHT.orange, size=11)
    box(axes, optimizer, y, 9, 6, "optimizer", colour=LIGHT.green, size=11)


@diagram("The way of a gradient through DDP, on one rank", 3.6)
def way_of_a_bucket(axes) -> None:
    """The backward makes gradients, one parameter after another. They are copied into a bucket. The
    full bucket goes to the communication hook, which may compress it. An all-reduce adds up what
    the ranks' hooks have made of it. The hook makes the averaged bucket of the sum, and it is
    copied back into the gradients. The option bucket_cap_mb sets how large a bucket is,
    gradient_as_bucket_view saves the copies, static_graph tells DDP which gradients to expect,
    register_comm_hook sets the form in which a bucket travels.
    """
    stations = (
        (0, 15, "gradients,\none by one", LIGHT.blue),
        (24, 15, "a bucket:\nmany gradients\nside by side", LIGHT.orange),
        (50, 19, "communication hook\nfp16, bf16,\nPowerSGD …", LIGHT.green),
        (80, 19, "all-reduce\nwith the\nother ranks", LIGHT.orange),
    )
    boxes(axes, 13, 11, *stations)
    ways = ("copied", "copied"), ("full", "averaged"), ("sent", "summed")
    for (one, other), (there, back) in zip(pairwise(stations), ways, strict=True):
        left, right = one[0] + one[1] + 0.4, other[0] - 0.4
        arrow(axes, (left, 21), (right, 21), there, above=1.9)
        arrow(axes, (right, 16), (left, 16), back, above=-2.1, colour=BLUE)
    for x, y, name, does in (
        (7.5, 31, "static_graph", "which gradients\nare to come?"),
        (19.8, 8, "gradient_as_bucket_view", "or no copies: the\ngradients are views of it"),
        (33.5, 31, "bucket_cap_mb", "when is it full?"),
        (59.5, 31, "register_comm_hook", "in which form\ndoes it travel?"),
    ):
        label(axes, x, y, name, bold=True, size=11, ink=VERMILLION)
        label(axes, x, y - 3.4, does, size=11)


@diagram("What is averaged, and when?", 4.2)
def averages(axes) -> None:
    """Two ranks over eight steps. With DDP the gradients are averaged in every step, before the
    optimizer, and the parameters of both ranks stay equal all the time. With local SGD each rank
    steps with its own gradients, their parameters part, and every fourth step the parameters
    themselves are averaged, so that both go on from one point.
    """
    for y, name, what, every in (
        (31, "DDP", "gradients,\nevery step", 1),
        (10.5, "local SGD", "parameters,\nevery 4th step", 4),
    ):
        label(axes, 0, y + 3.5, name, at="left", bold=True, size=14)
        label(axes, 0, y - 2.2, what, at="left", ink=VERMILLION)
        for start in range(0, 8, every):
            x = (24 + 9 * start, 24 + 9 * (start + every))
            for side in (1, -1) if every > 1 else (0,):
                axes.plot(x, [y, y + 4.8 * side], color=BLUE, linewidth=2.5)
            axes.plot([x[1]] * 2, [y - 5.2, y + 5.2], color=VERMILLION, linewidth=3)
    label(axes, 33, 21.7, "both ranks' parameters are the same line", at="left", ink=BLUE)
    labels(axes, (40, 15.6, "rank 0"), (40, 5.4, "rank 1"), ink=BLUE)
    steps = ((24 + 9 * step, 1.6, str(step)) for step in range(9))
    labels(axes, (12, 1.6, "step"), *steps, size=11)


@styled
def attempts(run: Run, saved_every: int) -> Figure:
    """Draw the steps that each attempt of a restarted run recorded, and its checkpoints."""
    written = Steps(run.folder).read_new()  # with the rows of earlier attempts
    last = max(row.step for row in written)
    numbers = sorted({row.attempt for row in written})
    title = f"{len(numbers)} attempts at one training: which steps each recorded"
    figure, axes = begin(title, 2.6 + 0.8 * len(numbers))
    seen, says = set(), []
    for place, attempt in enumerate(numbers):
        steps = [row.step for row in written if row.attempt == attempt]
        for step in steps:
            look = (LIGHT.orange, "//") if step in seen else (LIGHT.blue, "")
            bar(axes, place, 1, look, step, height=0.55)
            behind = WHITE if step in seen else None
            axes.text(step + 0.5, place, str(step), ha="center", va="center", bbox=behind)
        again = len(seen & set(steps))
        says.append(f"attempt {attempt} steps {min(steps)} to {max(steps)}, {again} of them again")
        seen |= set(steps)
    for boundary in [*range(saved_every, last + 1, saved_every), last + 1]:
        axes.axvline(boundary, color=GREEN, linewidth=3, linestyle="--")
    above(axes, saved_every, 1, "saved", xycoords=("data", "axes fraction"))
    rows(axes, [f"attempt {attempt}" for attempt in numbers], beside=0.5)
    axes.set(xlim=(0, last + 1.15), xticks=[], xlabel="steps of the training, in order")
    note = "Hatched: trained again after the restart. Dashed lines: a checkpoint was written."
    return finish(figure, [run], f"{title}: {'; '.join(says)}.", (note,))


@diagram("Two hosts: the ring visits all GPUs of one before it crosses", 3.9)
def two_hosts(axes) -> None:
    """Two hosts with 4 GPUs each. Inside a host the GPUs are joined by NVLink. Between the hosts
    there is a network, which each host reaches through its network cards. A ring goes from GPU to
    GPU inside the first host, over the network to the second, through its GPUs, and back over the
    network: it crosses the slow link once in each direction.
    """
    gpus, width, gap = 4, 8.2, 2.2
    wide = gpus * (width + gap) + gap
    for host, x0 in enumerate((0, 56)):
        box(axes, x0, 6, wide, 27, colour="white")
        label(axes, x0 + wide / 2, 35.6, f"host {host}", bold=True)
        for gpu in range(gpus):
            x = x0 + gap + gpu * (width + gap)
            box(axes, x, 22, width, 7, f"GPU {gpu + gpus * host}", colour=LIGHT.blue, size=11)
            if gpu:
                arrow(axes, (x - gap - 0.2, 25.5), (x + 0.2, 25.5), colour=VERMILLION)
        label(axes, x0 + wide / 2, 31, "NVLink", size=11)
        box(axes, x0 + gap, 9, wide - 2 * gap, 5, "network cards", colour=LIGHT.orange, size=11)
    first, last = gap + width / 2, wide - gap - width / 2
    left, right = wide - gap + 0.3, 56 + gap - 0.3  # the network between the cards
    arrows(axes, *((x, 21.6, x, 14.4) for x in (last, 56 + last)), colour=VERMILLION)
    arrows(axes, *((x, 14.4, x, 21.6) for x in (first, 56 + first)), colour=VERMILLION)
    arrows(axes, (left, 12.5, right, 12.5), (right, 10.5, left, 10.5), colour=VERMILLION)
    label(axes, 50, 16.4, "network", size=11)
    label(axes, 0, 2, "▶ the ring: each GPU sends to the next only", at="left", ink=VERMILLION)


@diagram("7 ranks in a ring, and in a tree", 3.4)
def ring_and_tree(axes) -> None:
    """7 ranks. In the ring each sends to its right neighbour, the last to the first. In the tree
    sums go up level by level from the leaves to rank 0 at the root, and the result comes down.
    """
    ranks = 7
    for rank in range(ranks):
        x = 6.2 * rank
        box(axes, x, 15, 4, 5, str(rank), colour=LIGHT.blue)
        if rank:
            arrow(axes, (x - 2.4, 17.5), (x + 0.2, 17.5), colour=VERMILLION)
    end = 6.2 * (ranks - 1) + 2
    arrow(axes, (end, 14.6), (2, 14.6), colour=VERMILLION, bend=-0.32)
    levels = [(rank + 1).bit_length() - 1 for rank in range(ranks)]  # from the root down
    # from the left of a rank's level, spread over the right half
    places = [
        (54 + 46 * (rank + 1.5 - 2**level) / 2**level, 21 - 8 * level)
        for rank, level in enumerate(levels)
    ]
    for rank, (x, y) in enumerate(places):
        if rank:  # rank r has the children 2r + 1 and 2r + 2
            parent_x, parent_y = places[(rank - 1) // 2]
            arrows(axes, (x, y + 4.2, parent_x, parent_y - 0.2), colour=VERMILLION, style="<->")
        box(axes, x - 2, y, 4, 4, str(rank), colour=LIGHT.blue)
    labels(axes, (end / 2, 32, "ring"), (77, 32, "tree"), bold=True, size=14)
    ring = f"{ranks - 1} steps to add up, {ranks - 1} to pass on"
    tree = f"{max(levels)} levels up, {max(levels)} down"
    labels(axes, (end / 2, 28.8, ring), (77, 28.8, tree), size=11)
    axes.plot([50, 50], [2, 31], color=PALE, linewidth=1.5)
