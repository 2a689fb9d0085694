"""The pictures of notebook 08: hosts on one machine, rings and rows over them, two rankings."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    INK,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    ORANGE,
    SKY,
    VERMILLION,
)
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled
from bootcamp.records.runs import Run
from bootcamp.theory import sharding
from bootcamp.units import number

CROWDED = "//"


@styled
def two_hosts(link: str) -> Figure:
    """Two network namespaces of one machine, with a switch between them that has a slow port."""
    says = (
        "One machine with one kernel, its cores and its memory. In it two network namespaces, host0"
        " and host1. Each has two ranks and a loopback, lo, over which its ranks meet, and an "
        "interface of its own, eth0, with a filter that lets out no more than "
        f"{link}. Both eth0 lead to a switch, which joins the hosts."
    )
    figure, axes = canvas("Two hosts on one machine", says, 4.4)
    box(axes, 0, 0, 100, 44, colour="white", line="--")
    label(axes, 50, 41, "this machine: one kernel, its cores, its memory", size=FOOT)
    for host, x in enumerate((3, 62)):
        box(axes, x, 3, 35, 34.5, colour=LIGHT_BLUE if host == 0 else LIGHT_GREEN)
        label(axes, x + 17.5, 34.2, f"host{host}: a network namespace", bold=True)
        for place in range(2):
            left = x + 2.5 + 17 * place
            box(axes, left, 22, 13, 8.5, f"rank {2 * host + place}", colour="white")
            arrow(axes, (left + 6.5, 21.8), (left + 6.5, 17.2), style="<->")
        box(axes, x + 2.5, 11.5, 30, 5.5, "lo: the loopback, fast", colour="white")
        near = x + 21 if host == 0 else x + 2.5
        box(axes, near, 4.2, 11.5, 5.5, "eth0", colour=LIGHT_ORANGE, bold=True)
        label(axes, x + 11 if host == 0 else x + 25, 7, f"filter: {link}", ink=VERMILLION)
    box(axes, 44.5, 4.2, 11, 5.5, "switch", colour="#F4F4F4")
    arrow(axes, (35.7, 7), (44.3, 7), style="<->", colour=VERMILLION)
    arrow(axes, (55.7, 7), (64.3, 7), style="<->", colour=VERMILLION)
    label(axes, 50, 14, "the link", ink=VERMILLION, bold=True)
    return figure


def _link(strategy: str, **how) -> float:
    """Bytes that a host of two sends to the other, in models, for 2 x 2 ranks."""
    shard = how.get("shard")
    calls = sharding.collectives(strategy, **how)
    return sharding.link_bytes(calls, 1.0, 4, 2, shard=shard)


@styled
def rings() -> Figure:
    """The ring of DDP and FSDP over 2 x 2 ranks beside the rows and columns of HSDP."""
    ddp, fsdp, hsdp = _link("ddp"), _link("fsdp"), _link("hsdp", shard=2)
    says = (
        "Left, DDP and FSDP: one ring goes through all four ranks, 0, 1, 2, 3 and back to 0. From "
        "rank 1 to 2 and from 3 to 0 it crosses the link. All that the ring carries crosses it: a "
        f"host sends {ddp:g} times the model in a step with DDP, {fsdp:g} times with FSDP. "
        "Right, HSDP with rows of two: ranks 0 and 1 of host 0 hold a copy of the model together, "
        "ranks 2 and 3 of host 1 another. They gather parameters and reduce gradients within the "
        "host. Over the link go only the columns, 0 with 2 and 1 with 3, which average the "
        f"gradients of one part each: {hsdp:g} times the model."
    )
    figure, axes = canvas("What crosses the link in a step", says, 4.6)
    for x, title in ((0, "DDP, FSDP: one ring"), (54, "HSDP: a mesh, 2 rows of 2")):
        label(axes, x, 44, title, at="left", bold=True)
        for host, y in enumerate((29, 10)):
            tint = LIGHT_BLUE if host == 0 else LIGHT_GREEN
            box(axes, x, y, 46, 11, line="--", colour="white")
            label(axes, x + 1, y + 5.5, f"host\n{host}", at="left", size=FOOT)
            for place in range(2):
                rank = 2 * host + place
                text = f"rank {rank}" if x == 0 else f"rank {rank}\npart {place}"
                box(axes, x + 8 + 22 * place, y + 1.7, 14, 7.6, text, colour=tint)
    look = {"colour": BLUE}
    arrow(axes, (22.3, 34.5), (29.7, 34.5), **look)
    arrow(axes, (22.3, 15.5), (29.7, 15.5), **look)
    arrow(axes, (31, 30.5), (20, 19.6), colour=VERMILLION)
    arrow(axes, (35, 19.6), (12, 30.5), colour=VERMILLION)
    for y in (34.5, 15.5):
        arrow(axes, (76.3, y), (83.7, y), style="<->", **look)
    for x in (69, 91):
        arrow(axes, (x, 19.6), (x, 30.4), style="<->", colour=VERMILLION)
    label(axes, 80, 25, "all-reduce\nof a part", ink=VERMILLION, size=FOOT)
    label(axes, 0, 5.5, "a host sends over the link:", at="left", size=FOOT)
    label(axes, 0, 1.8, f"DDP {ddp:g} × the model, FSDP {fsdp:g} ×", at="left", ink=VERMILLION)
    label(axes, 54, 5.5, "a host sends over the link:", at="left", size=FOOT)
    label(axes, 54, 1.8, f"{hsdp:g} × the model", at="left", ink=VERMILLION)
    return figure


@styled
def ranking(without: dict[str, Run], slow: dict[str, Run], formula: dict[str, float]) -> Figure:
    """Seconds per step of the same strategies with the link open and slow.

    formula: {strategy: seconds in which the slow link carries its bytes}.
    """
    link = next(iter(slow.values())).config["link"]
    height = 2.4 + 0.95 * len(slow)
    figure, axes = begin(f"A step with the link open, and at {link}", height)
    says = []
    for place, name in enumerate(slow):
        pair = ((without[name], -0.2, SKY), (slow[name], 0.2, ORANGE))
        for run, offset, colour in pair:
            hatch = {"hatch": CROWDED, "edgecolor": INK, "linewidth": 0.8}
            look = hatch if run.oversubscribed else {}
            seconds = run.seconds_per_step
            axes.barh(place + offset, seconds, height=0.36, color=colour, **look)
            words = f"{number(seconds)} s"
            right = max(seconds, formula[name] if colour == ORANGE else 0)
            axes.annotate(
                words, (right, place + offset), (12, 0), textcoords="offset points", va="center"
            )
        axes.plot([formula[name]] * 2, [place, place + 0.4], color=BLACK, linewidth=4)
        says.append(
            f"{name} {number(without[name].seconds_per_step)} s open, "
            f"{number(slow[name].seconds_per_step)} s at {link}, "
            f"of which the link by formula {number(formula[name])} s"
        )
    axes.set_yticks(range(len(slow)), list(slow))
    axes.set_ylim(len(slow) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * max(run.seconds_per_step for run in slow.values()))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel("seconds per step")
    handles = [
        Patch(facecolor=SKY, label="link open"),
        Patch(facecolor=ORANGE, label=f"link {link}"),
        Patch(facecolor=BLACK, label="bytes / rate, by formula"),
    ]
    legend(figure, handles)
    note = "Median of the steps after warm-up. Hatched: more ranks than cores."
    return finish(figure, [*without.values(), *slow.values()], f"{'; '.join(says)}.", (note,))
