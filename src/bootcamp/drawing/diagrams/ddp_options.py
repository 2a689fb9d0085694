"""The pictures of notebook 04b: a bucket's way, what is averaged when, a restart, a network."""

import json

from matplotlib.figure import Figure

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    GREEN,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    PALE,
    VERMILLION,
)
from bootcamp.drawing.style import SMALL, begin, finish, styled
from bootcamp.records import trace as timeline
from bootcamp.records.runs import Run

CENTRED = {"textcoords": "offset points", "ha": "center"}


@styled
def way_of_a_bucket() -> Figure:
    """What DDP does with gradients in the backward, and where each of its options takes hold."""
    says = (
        "The backward makes gradients, one parameter after another. They are copied into a bucket. "
        "The full bucket goes to the communication hook, which may compress it. An all-reduce adds "
        "up what the ranks' hooks have made of it. The hook makes the averaged bucket of the sum, "
        "and it is copied back into the gradients. The option bucket_cap_mb sets how large a "
        "bucket is, gradient_as_bucket_view saves the copies, static_graph tells DDP which "
        "gradients to expect, register_comm_hook sets the form in which a bucket travels."
    )
    figure, axes = canvas("The way of a gradient through DDP, on one rank", says, 3.6)
    stations = (
        (0, 15, "gradients,\none by one", LIGHT_BLUE),
        (24, 15, "a bucket:\nmany gradients\nside by side", LIGHT_ORANGE),
        (50, 19, "communication hook\nfp16, bf16,\nPowerSGD …", LIGHT_GREEN),
        (80, 19, "all-reduce\nwith the\nother ranks", LIGHT_ORANGE),
    )
    for x, width, text, colour in stations:
        box(axes, x, 13, width, 11, text, colour=colour)
    for (x, width, _, _), (end, *_), there, back in (
        (stations[0], stations[1], "copied", "copied"),
        (stations[1], stations[2], "full", "averaged"),
        (stations[2], stations[3], "sent", "summed"),
    ):
        arrow(axes, (x + width + 0.4, 21), (end - 0.4, 21), there, above=1.9)
        arrow(axes, (end - 0.4, 16), (x + width + 0.4, 16), back, above=-2.1, colour=BLUE)
    for x, name, does in (
        (7.5, "static_graph", "which gradients\nare to come?"),
        (19.8, "gradient_as_bucket_view", "or no copies: the\ngradients lie in it"),
        (33.5, "bucket_cap_mb", "when is it full?"),
        (59.5, "register_comm_hook", "in which form\ndoes it travel?"),
    ):
        high = name in ("static_graph", "bucket_cap_mb", "register_comm_hook")
        label(axes, x, 31 if high else 8, name, bold=True, size=11, ink=VERMILLION)
        label(axes, x, 27.7 if high else 4.6, does, size=10.5)
    return figure


def buckets_of(run: Run) -> int:
    """All-reduces that rank 0 called in the traced step, without the one for the loss."""
    trace = json.loads((run.folder / "ranks" / "0.trace.json").read_text())
    return sum(event["name"] == "c10d::allreduce_" for event in trace["traceEvents"]) - 1


@styled
def bucket_sweep(runs: list[Run]) -> Figure:
    """Step time over the number of buckets, a dot for each run, and what overlaps in a step.

    runs: of ddp_options with trace_step=, several for each --bucket-mb. Left: milliseconds per
    step, medians after warm-up; the line joins the medians of equal settings. Right, of the traced
    step of rank 0: time in collectives, and the part of it in which the rank computed as well.
    """
    title = "More, smaller buckets: step time and overlap"
    figure, (left, right) = begin(title, 5.2, ncols=2)
    groups = {}
    for run in runs:
        groups.setdefault(buckets_of(run), []).append(run)
    groups = dict(sorted(groups.items()))
    medians, says = [], []
    for count, same in groups.items():
        times = [1e3 * run.seconds_per_step for run in same]
        left.plot([count] * len(times), times, "o", color=BLUE, markerfacecolor="white")
        medians.append(_middle(times))
        says.append(f"{count} buckets {min(times):.0f} to {max(times):.0f} ms")
    left.plot(list(groups), medians, color=BLUE)
    in_collectives, at_once = zip(*(_overlap(same) for same in groups.values()), strict=True)
    right.plot(list(groups), in_collectives, "s--", color=VERMILLION, label="communicates")
    right.plot(list(groups), at_once, "o-", color=BLACK, label="of that, computes too")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(groups), [str(count) for count in groups])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("buckets per step")
        axes.grid(axis="y")
    left.set_ylabel("ms per step")
    right.set_ylabel("ms in the traced step")
    right.legend(fontsize=SMALL)
    note = "Left, circles: single runs, the line joins their medians. Right: medians of the runs."
    return finish(figure, runs, f"Step time: {'; '.join(says)}.", (note,))


def _overlap(runs: list[Run]) -> tuple[float, float]:
    """(ms in collectives, ms of them while computing) of rank 0's traced step: medians."""
    pairs = []
    for run in runs:
        trace = run.timeline(0)
        both = timeline.overlap_seconds(trace["compute"], trace["communicate"])
        pairs.append((timeline.total_seconds(trace["communicate"]), both))
    return tuple(1e3 * _middle(values) for values in zip(*pairs, strict=True))


def _middle(values) -> float:
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


@styled
def averages() -> Figure:
    """What the ranks average, and when: DDP gradients in each step, local SGD parameters rarely."""
    says = (
        "Two ranks over eight steps. With DDP the gradients are averaged in every step, before the "
        "optimizer, and the parameters of both ranks stay equal all the time. With local SGD each "
        "rank steps with its own gradients, their parameters part, and every fourth step the "
        "parameters themselves are averaged, so that both go on from one point."
    )
    figure, axes = canvas("What is averaged, and when?", says, 4.2)
    rows = (
        (31, "DDP", "gradients,\nevery step", 1),
        (10.5, "local SGD", "parameters,\nevery 4th step", 4),
    )
    for y, name, what, every in rows:
        label(axes, 0, y + 3.5, name, at="left", bold=True, size=14)
        label(axes, 0, y - 2.2, what, at="left", ink=VERMILLION)
        for start in range(0, 8, every):
            x = (24 + 9 * start, 24 + 9 * (start + every))
            for side in (1, -1) if every > 1 else (0,):
                axes.plot(x, [y, y + 4.8 * side], color=BLUE, linewidth=2.5)
            axes.plot([x[1]] * 2, [y - 5.2, y + 5.2], color=VERMILLION, linewidth=3)
    label(axes, 33, 21.7, "both ranks' parameters lie on one line", at="left", ink=BLUE)
    label(axes, 40, 15.6, "rank 0", ink=BLUE)
    label(axes, 40, 5.4, "rank 1", ink=BLUE)
    for step in range(9):
        label(axes, 24 + 9 * step, 0.3, str(step), size=11)
    label(axes, 12, 0.3, "step", size=11)
    return figure


@styled
def attempts(run: Run, saved_every: int) -> Figure:
    """The steps that each attempt of a restarted run recorded, and where it could resume."""
    rows = [json.loads(line) for line in (run.folder / "steps.jsonl").read_text().splitlines()]
    last = max(row["step"] for row in rows)
    numbers = sorted({row["attempt"] for row in rows})
    title = f"{len(numbers)} attempts at one training: which steps each recorded"
    figure, axes = begin(title, 2.6 + 0.8 * len(numbers))
    seen, says = set(), []
    for place, attempt in enumerate(numbers):
        steps = [row["step"] for row in rows if row["attempt"] == attempt]
        for step in steps:
            look = {"facecolor": LIGHT_ORANGE, "hatch": "//"} if step in seen else {}
            look = {"facecolor": LIGHT_BLUE, "edgecolor": BLACK, "linewidth": 0.8, **look}
            axes.barh(place, 1, left=step, height=0.55, **look)
            axes.text(step + 0.5, place, str(step), ha="center", va="center", fontsize=SMALL)
        again = len(seen & set(steps))
        says.append(f"attempt {attempt} steps {min(steps)} to {max(steps)}, {again} of them again")
        seen |= set(steps)
    for boundary in [*range(saved_every, last + 1, saved_every), last + 1]:
        axes.axvline(boundary, color=GREEN, linewidth=3, linestyle="--")
    axes.annotate("saved", (saved_every, 1), (0, 4), xycoords=("data", "axes fraction"), **CENTRED)
    axes.set_yticks(range(len(numbers)), [f"attempt {attempt}" for attempt in numbers])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(numbers) - 0.5, -0.5)
    axes.set_xlim(0, last + 1.15)
    axes.set_xticks([])
    axes.set_xlabel("steps of the training, in order")
    note = "Hatched: trained again after the restart. Dashed lines: a checkpoint was written."
    return finish(figure, [run], f"{title}: {'; '.join(says)}.", (note,))


@styled
def two_hosts(gpus: int = 4) -> Figure:
    """Two hosts with some GPUs each: fast links inside, a network between, and a ring over all."""
    says = (
        f"Two hosts with {gpus} GPUs each. Inside a host the GPUs are joined by NVLink. Between "
        "the hosts there is a network, which each host reaches through its network cards. A ring "
        "goes from GPU to GPU inside the first host, over the network to the second, through its "
        "GPUs, and back over the network: it crosses the slow link once in each direction."
    )
    title = "Two hosts: the ring visits all GPUs of one before it crosses"
    figure, axes = canvas(title, says, 3.9)
    width, gap = 8.2, 2.2
    for host, x0 in enumerate((0, 56)):
        wide = gpus * (width + gap) + gap
        box(axes, x0, 6, wide, 27, colour="white")
        label(axes, x0 + wide / 2, 35.6, f"host {host}", bold=True)
        for gpu in range(gpus):
            x = x0 + gap + gpu * (width + gap)
            box(axes, x, 22, width, 7, f"GPU {gpu + gpus * host}", colour=LIGHT_BLUE, size=11)
            if gpu:
                arrow(axes, (x - gap - 0.2, 25.5), (x + 0.2, 25.5), colour=VERMILLION)
        label(axes, x0 + wide / 2, 31, "NVLink", size=11)
        box(axes, x0 + gap, 9, wide - 2 * gap, 5, "network cards", colour=LIGHT_ORANGE, size=11)
    wide = gpus * (width + gap) + gap
    first, last = gap + width / 2, wide - gap - width / 2
    arrow(axes, (last, 21.6), (last, 14.4), colour=VERMILLION)
    arrow(axes, (wide - gap + 0.3, 12.5), (56 + gap - 0.3, 12.5), colour=VERMILLION)
    arrow(axes, (56 + first, 14.4), (56 + first, 21.6), colour=VERMILLION)
    arrow(axes, (56 + last, 21.6), (56 + last, 14.4), colour=VERMILLION)
    arrow(axes, (56 + gap - 0.3, 10.5), (wide - gap + 0.3, 10.5), colour=VERMILLION)
    arrow(axes, (first, 14.4), (first, 21.6), colour=VERMILLION)
    label(axes, 50, 16.4, "network", size=11)
    label(axes, 0, 2, "▶ the ring: each GPU sends to the next only", at="left", ink=VERMILLION)
    return figure


@styled
def ring_and_tree(ranks: int = 7) -> Figure:
    """Who sends to whom in a ring and in a binary tree of the same ranks."""
    says = (
        f"{ranks} ranks. In the ring each sends to its right neighbour, the last to the first. In "
        "the tree sums go up from the leaves to rank 0 at the root in as many levels as the tree "
        "is high, and the result comes down the same way."
    )
    figure, axes = canvas(f"{ranks} ranks in a ring, and in a tree", says, 3.4)
    for rank in range(ranks):
        x = 6.2 * rank
        box(axes, x, 15, 4, 5, str(rank), colour=LIGHT_BLUE)
        if rank:
            arrow(axes, (x - 2.4, 17.5), (x + 0.2, 17.5), colour=VERMILLION)
    end = 6.2 * (ranks - 1) + 2
    arrow(axes, (end, 14.6), (2, 14.6), colour=VERMILLION, bend=-0.32)
    label(axes, end / 2, 32, "ring", bold=True, size=14)
    label(axes, end / 2, 28.8, f"{ranks - 1} steps to add up, {ranks - 1} to pass on", size=11)
    places = _tree_places(ranks)
    levels = 1 + max(level for _, level in places)
    for rank, (x, level) in enumerate(places):
        y = 21 - 8 * level
        if rank:
            above_x, above_level = places[_above(rank)]
            start, stop = (x, y + 4.2), (above_x, 21 - 8 * above_level - 0.2)
            arrow(axes, start, stop, colour=VERMILLION, style="<->")
        box(axes, x - 2, y, 4, 4, str(rank), colour=LIGHT_BLUE)
    label(axes, 77, 32, "tree", bold=True, size=14)
    label(axes, 77, 28.8, f"{levels - 1} levels up, {levels - 1} down", size=11)
    axes.plot([50, 50], [2, 31], color=PALE, linewidth=1.5)
    return figure


def _above(rank: int) -> int:
    """The parent in a binary tree in which rank r has the children 2r+1 and 2r+2."""
    return (rank - 1) // 2


def _tree_places(ranks: int) -> list[tuple[float, int]]:
    """(x, level) of each rank: the tree's levels from the root down, spread over the right half."""
    places = []
    for rank in range(ranks):
        level = (rank + 1).bit_length() - 1
        in_level = 2**level
        position = rank + 1 - in_level
        places.append((54 + 46 * (position + 0.5) / in_level, level))
    return places
