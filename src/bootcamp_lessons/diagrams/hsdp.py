"""Lesson 08: two simulated hosts, rings and meshes over them, and steps with a slow link."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, canvas, label, labels
from bootcamp.drawing.charts import beside, handles, marker_line, rows, run_bar, shared_note
from bootcamp.drawing.palette import BLACK, BLUE, LIGHT, ORANGE, PAPER, SKY, VERMILLION
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled
from bootcamp.records.runs import Run
from bootcamp.units import number
from bootcamp_lessons.labs import hsdp_lab


@styled
def two_hosts(link: str) -> Figure:
    """Draw two network namespaces of one machine, joined by a link of this rate."""
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
        box(axes, x, 3, 35, 34.5, colour=LIGHT.blue if host == 0 else LIGHT.green)
        label(axes, x + 17.5, 34.2, f"host{host}: a network namespace", bold=True)
        for place in range(2):
            left = x + 2.5 + 17 * place
            box(axes, left, 22, 13, 8.5, f"rank {2 * host + place}", colour="white")
            arrow(axes, (left + 6.5, 21.8), (left + 6.5, 17.2), style="<->")
        box(axes, x + 2.5, 11.5, 30, 5.5, "lo: the loopback, fast", colour="white")
        near = x + 21 if host == 0 else x + 2.5
        box(axes, near, 4.2, 11.5, 5.5, "eth0", colour=LIGHT.orange, bold=True)
        label(axes, x + 11 if host == 0 else x + 25, 7, f"filter: {link}", ink=VERMILLION)
    box(axes, 44.5, 4.2, 11, 5.5, "switch", colour=PAPER)
    arrows(axes, (35.7, 7, 44.3, 7), (55.7, 7, 64.3, 7), style="<->", colour=VERMILLION)
    label(axes, 50, 14, "the link", ink=VERMILLION, bold=True)
    return figure


@styled
def rings() -> Figure:
    """Draw the ring of DDP and FSDP over 2 x 2 ranks beside the mesh of HSDP."""
    # how many times the model a host sends to the other
    ddp, fsdp, hsdp = (hsdp_lab.sent_bytes(name)[0] for name in ("DDP", "FSDP", "HSDP"))
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
    titles = (0, 44, "DDP, FSDP: one ring"), (54, 44, "HSDP: a mesh, 2 rows of 2")
    labels(axes, *titles, at="left", bold=True)
    for x in (0, 54):
        for host, y in enumerate((29, 10)):
            tint = LIGHT.blue if host == 0 else LIGHT.green
            box(axes, x, y, 46, 11, line="--", colour="white")
            label(axes, x + 1, y + 5.5, f"host\n{host}", at="left", size=FOOT)
            for place in range(2):
                rank = 2 * host + place
                text = f"rank {rank}" if x == 0 else f"rank {rank}\npart {place}"
                box(axes, x + 8 + 22 * place, y + 1.7, 14, 7.6, text, colour=tint)
    arrows(axes, (22.3, 34.5, 29.7, 34.5), (22.3, 15.5, 29.7, 15.5), colour=BLUE)
    arrows(axes, (31, 30.5, 20, 19.6), (35, 19.6, 12, 30.5), colour=VERMILLION)
    both = {"style": "<->"}
    arrows(axes, (76.3, 34.5, 83.7, 34.5), (76.3, 15.5, 83.7, 15.5), colour=BLUE, **both)
    arrows(axes, (69, 19.6, 69, 30.4), (91, 19.6, 91, 30.4), colour=VERMILLION, **both)
    label(axes, 80, 25, "all-reduce\nof a part", ink=VERMILLION, size=FOOT)
    text = "over the link, all in one precision:"
    labels(axes, (0, 5.5, text), (54, 5.5, text), at="left", size=FOOT)
    sends = (
        (0, 1.8, f"DDP {ddp:g} × the model, FSDP {fsdp:g} ×"),
        (54, 1.8, f"{hsdp:g} × the model"),
    )
    labels(axes, *sends, at="left", ink=VERMILLION)
    return figure


@styled
def step_seconds(without: dict, slow: dict[str, Run], formula: dict[str, float]) -> Figure:
    """Draw seconds per step, the link open and slow; formula: seconds on the slow link."""
    link = next(iter(slow.values())).config["link"]
    title = f"A step with the link open, and at {link}"
    figure, axes = begin(title, 2.4 + 0.95 * len(slow), grid="x")
    says, longest = [], 0.0
    for row, (name, at_link) in enumerate(slow.items()):
        seconds = {SKY: without[name].seconds_per_step, ORANGE: at_link.seconds_per_step}
        run_bar(axes, row - 0.2, seconds[SKY], without[name], height=0.36, color=SKY)
        run_bar(axes, row + 0.2, seconds[ORANGE], at_link, height=0.36, color=ORANGE)
        beside(axes, seconds[SKY], row - 0.2, f"{number(seconds[SKY])} s")
        end = max(seconds[ORANGE], formula[name])
        beside(axes, end, row + 0.2, f"{number(seconds[ORANGE])} s")
        marker_line(axes, row + 0.2, formula[name], half=0.2, linewidth=4)
        longest = max(longest, end, seconds[SKY])
        times = f"{number(seconds[SKY])} s open, {number(seconds[ORANGE])} s at {link}"
        says.append(f"{name} {times}, of which the link by formula {number(formula[name])} s")
    rows(axes, list(slow))
    axes.set(xlim=(0, 1.2 * longest), xlabel="seconds per step")
    looks = {"link open": SKY, f"link {link}": ORANGE, "bytes / rate, by formula": BLACK}
    legend(figure, handles({words: (colour, "") for words, colour in looks.items()}))
    runs = [*without.values(), *slow.values()]
    note = "Median of the steps after warm-up. Hatched: more ranks than cores."
    return finish(figure, runs, f"{'; '.join(says)}.", (note, *shared_note(runs)))
