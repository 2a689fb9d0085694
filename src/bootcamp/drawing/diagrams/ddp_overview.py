"""The pictures of notebook 04: who holds what, buckets and backward, a ring, two experiments."""

from matplotlib.figure import Figure

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import (
    BLUE,
    COLOURS,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    MARKERS,
    PALE,
    SKY,
    VERMILLION,
)
from bootcamp.drawing.style import SMALL, begin, finish, styled
from bootcamp.records.runs import Run
from bootcamp.theory import collectives


@styled
def who_holds_what() -> Figure:
    """One step of data parallel training on two ranks: what each holds, what they exchange."""
    says = (
        "Each of two ranks holds the whole model, and gets another share of the global batch. Each "
        "computes gradients of its own. An all-reduce gives both ranks the mean of the gradients. "
        "Each runs its own optimizer, with its own state, and both arrive at the same parameters."
    )
    figure, axes = canvas("One step on two ranks: what each of them holds", says, 3.7)
    parts = (
        (12, 16, "share of the\nglobal batch", LIGHT_ORANGE, "different"),
        (32, 14, "the whole\nmodel", LIGHT_BLUE, "equal"),
        (50, 13, "own\ngradients", LIGHT_ORANGE, "different"),
        (84, 15, "own optimizer,\nown state", LIGHT_BLUE, "equal"),
    )
    for rank, (y, middle) in enumerate(((26, 20.5), (3, 15.5))):
        label(axes, 5, y + 4.5, f"rank {rank}", bold=True, size=14)
        for x, width, text, colour, _ in parts:
            box(axes, x, y, width, 9, text, colour=colour)
        for start, end in ((28.3, 31.7), (46.3, 49.7)):
            arrow(axes, (start, y + 4.5), (end, y + 4.5))
        arrow(axes, (57, y if rank == 0 else y + 9), (65.3, middle), colour=VERMILLION)
        arrow(axes, (81.8, middle), (90, y if rank == 0 else y + 9), colour=VERMILLION)
    box(axes, 66, 12.5, 15.5, 11, "all-reduce:\nmean of the\ngradients", colour=LIGHT_GREEN)
    for x, width, _, _, compared in parts:
        label(axes, x + width / 2 + (x == 84) * 3, 18, compared, bold=True)
    return figure


@styled
def overlap() -> Figure:
    """When gradients travel: after the whole backward, or bucket by bucket while it goes on."""
    says = (
        "Two time lines of one step, not to scale. By hand: forward, then backward from the last "
        "layer to the first, then one all-reduce after another, then the optimizer. With buckets: "
        "as soon as the backward has filled a bucket, its all-reduce begins while the backward "
        "goes on, and only the last bucket is waited for. The step ends earlier."
    )
    figure, axes = canvas("When do the gradients travel? (not to scale)", says, 4.4)
    label(
        axes,
        0,
        42,
        "by hand: one all-reduce per parameter, after the backward",
        at="left",
        bold=True,
    )
    _lanes(axes, 34)
    for number in range(9):
        box(axes, 63 + 3 * number, 27.3, 2.5, 5.5, colour=LIGHT_ORANGE)
    box(axes, 91, 34, 9, 6, "optimizer", colour=LIGHT_GREEN, size=10)
    label(
        axes,
        0,
        22.3,
        "DistributedDataParallel: buckets, while the backward goes on",
        at="left",
        bold=True,
    )
    _lanes(axes, 14.3)
    for x, width, text in ((40, 10.5, "bucket 0"), (51, 10.5, "bucket 1"), (62, 8, "last")):
        box(axes, x, 7.6, width, 5.5, text, colour=LIGHT_ORANGE, size=11)
    box(axes, 71, 14.3, 9, 6, "optimizer", colour=LIGHT_GREEN, size=10)
    arrow(axes, (80.5, 17.3), (100.3, 17.3), style="<->", colour=BLUE)
    label(axes, 90.5, 19.7, "time saved", ink=BLUE, bold=True)
    arrow(axes, (16, 4), (100.3, 4), colour=PALE)
    label(axes, 97, 1.8, "time")
    return figure


def _lanes(axes, y: float) -> None:
    """The computing lane of a rank, and the name of the communicating lane below it."""
    label(axes, 0, y + 3, "computes", at="left")
    label(axes, 0, y - 4, "communicates", at="left")
    box(axes, 16, y, 13, 6, "forward", colour=LIGHT_BLUE, size=11)
    for x, width, text in (
        (30, 9.5, "backward:\nlast layers"),
        (40, 10.5, "middle layers"),
        (51, 10.5, "first layers"),
    ):
        box(axes, x, y, width, 6, text, colour=SKY, size=9.5)


@styled
def ring(ranks: int = 3) -> Figure:
    """A ring all-reduce, piece by piece, as simulated: who holds which sums after each step.

    Each rank cuts its gradient into as many pieces as there are ranks, and sends one piece a step
    to the next rank (Patarasuk and Yuan, 2009). collective_steps draws one step at a time.
    """
    run = collectives.simulate("all-reduce", "ring", ranks)
    moments = run.moments
    sends = [{(send.source, send.chunk) for send in step} for step in run.steps]
    title = f"A ring all-reduce on {ranks} ranks: each sends {len(sends)} pieces of 1/{ranks}"
    says = (
        f"Each rank's gradient is cut into {ranks} pieces. In each of {len(sends)} steps every "
        f"rank sends one piece to the next. In the first {ranks - 1} steps the receiver adds it to "
        "its own piece, after which each rank holds one piece summed over all ranks. In the last "
        f"{ranks - 1} steps these sums go round, until every rank has all of them."
    )
    height = 1.1 * ranks + 1.6
    figure, axes = canvas(title, says, height)
    wide = 90 / len(moments)
    for moment, held in enumerate(moments):
        x = 9.5 + wide * moment
        does = "at first" if moment == 0 else f"after step {moment}"
        label(axes, x + wide / 2 - 1.2, 10 * height - 2, does, bold=True)
        for rank, pieces in enumerate(held):
            y = 10 * height - 14 - 11 * rank
            label(axes, 3.5, y + 4, f"rank {rank}" if moment == 0 else "", bold=True)
            for piece, summed in pieces.items():
                _piece(axes, x, y + 5.6 - 2.8 * piece, wide - 2.5, summed, ranks)
                if moment < len(sends) and (rank, piece) in sends[moment]:
                    label(axes, x + wide - 1.2, y + 6.8 - 2.8 * piece, "▶", ink=VERMILLION, size=11)
    edges = (9.5 + wide, 9.5 + wide * ranks, 9.5 + wide * len(moments))
    for left, right, text in (
        (edges[0], edges[1], "add up: reduce-scatter"),
        (edges[1], edges[2], "pass on: all-gather"),
    ):
        arrow(axes, (left, 6.8), (right - 2.5, 6.8), style="<->", colour=PALE)
        label(axes, (left + right - 2.5) / 2, 4.6, text)
    key = "0+2: this piece is the sum of rank 0's and rank 2's."
    way = "▶: it is sent to the next rank now, from the last rank to rank 0."
    label(axes, 0, 1, f"{key}   {way}", at="left", size=11)
    return figure


def _piece(axes, x: float, y: float, width: float, summed: frozenset, ranks: int) -> None:
    """One piece of a gradient and whose contributions it holds; green when all are in it."""
    colour = LIGHT_GREEN if len(summed) == ranks else LIGHT_ORANGE if len(summed) > 1 else "white"
    box(axes, x, y, width, 2.6, "+".join(map(str, sorted(summed))), colour=colour, size=10)


@styled
def speed_up_by_batch(pairs: list[tuple[Run, Run]]) -> Figure:
    """How many times as fast several ranks are as one process, over the global batch.

    pairs: (run of one process, run of several ranks) with one global batch each.
    """
    ranks, models = pairs[0][1].world, {run.config["model"] for pair in pairs for run in pair}
    title = f"{ranks} ranks against one process, by the size of the batch ({', '.join(models)})"
    figure, axes = begin(title, 5.0)
    batches = [one.config["global_batch"] for one, _ in pairs]
    speed_ups = [many.samples_per_second / one.samples_per_second for one, many in pairs]
    axes.axhspan(0, 1, color="#F4F4F4")
    axes.axhline(1, color=PALE, linestyle="--")
    axes.axhline(ranks, color=PALE, linestyle="--")
    axes.plot(batches, speed_ups, "o-", color=BLUE)
    for batch, speed_up in zip(batches, speed_ups, strict=True):
        axes.annotate(f"{speed_up:.2f}×", (batch, speed_up), (0, 12), **_CENTRED, fontweight="bold")
    for height, text in ((1, "as fast as one process"), (ranks, "ideal")):
        axes.annotate(
            text, (batches[0], height), (0, 8), **_CENTRED | {"ha": "left"}, fontsize=SMALL
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch}" for batch in batches])
    axes.minorticks_off()
    axes.set_ylim(0, 1.15 * max(ranks, *speed_ups))
    axes.set_xlabel("global batch (samples per step)")
    axes.set_ylabel("speed-up")
    values = zip(batches, speed_ups, strict=True)
    words = "; ".join(f"{batch} samples: {speed_up:.2f} times" for batch, speed_up in values)
    note = "Below the lower line the ranks together are slower than one of them alone."
    return finish(figure, [run for pair in pairs for run in pair], f"{title}: {words}.", (note,))


_CENTRED = {"textcoords": "offset points", "ha": "center"}


@styled
def loss_by_samples(curves: dict[str, list[Run]], window: int = 1600) -> Figure:
    """The loss against the number of samples trained on, so that batch sizes can be compared.

    curves: name -> runs with several seeds; their mean is drawn. window: samples that each point
    is a mean over, at least one step.
    """
    figure, axes = begin("Loss against samples seen, by batch and learning rate", 5.6)
    ends = []
    for position, (name, runs) in enumerate(curves.items()):
        samples, losses = _smooth(runs, window)
        look = {"color": COLOURS[position], "marker": MARKERS[position], "markevery": 0.125}
        axes.plot(samples, losses, label=name, **look)
        ends.append(f"{name}: {losses[-1]:.2f}")
    axes.legend(loc="upper right")
    axes.grid(axis="y")
    axes.set_xlabel("samples seen")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("mean loss (nats)")
    every = [run for runs in curves.values() for run in runs]
    seeds = len({run.config["seed"] for run in every})
    note = f"Each point: mean over {window:,} samples and {seeds} seed(s)."
    return finish(figure, every, f"At the end: {'; '.join(ends)}.", (note,))


def _smooth(runs: list[Run], window: int) -> tuple[list[int], list[float]]:
    """(samples seen, mean loss of the last `window` samples over all runs) after each window."""
    batch = runs[0].config["global_batch"]
    steps = max(1, window // batch)
    samples, losses = [], []
    for end in range(steps, len(runs[0].losses) + 1, steps):
        parts = [loss for run in runs for loss in run.losses[end - steps : end]]
        samples.append(end * batch)
        losses.append(sum(parts) / len(parts))
    return samples, losses
