"""Lesson 09: who starts whom on two hosts, and an all-reduce inside a host and over the link."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, diagram, label
from bootcamp.drawing.charts import log_axis
from bootcamp.drawing.palette import BLACK, BLUE, LIGHT, VERMILLION
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled
from bootcamp.records.runs import Run
from bootcamp.units import size, time

TICKS = {4: "4 B", 2**10: "1 KiB", 2**15: "32 KiB", 2**20: "1 MiB"}


@diagram("Who starts the ranks of two hosts", 4.4)
def who_starts_whom(axes) -> None:
    """Two ways, side by side, on two hosts each. Left: srun starts four tasks, two on each host,
    and each task is a rank: SLURM_PROCID 0 to 3, SLURM_LOCALID 0 and 1 on either host. Right: srun
    starts two tasks, one on each host. Each task is a torchrun, an agent. The agents meet, give
    each host a number, and each starts two ranks: RANK 0 to 3, LOCAL_RANK 0 and 1 on either host.
    """
    for x, title in ((0, "a task is a rank"), (52, "a task is an agent")):
        label(axes, x + 24, 42, title, bold=True)
        box(axes, x + 12, 33.5, 24, 5.5, "srun", bold=True)
        for host in range(2):
            left = x + 25 * host
            tint = LIGHT.blue if host == 0 else LIGHT.green
            box(axes, left, 1, 23, 26.5, line="--", colour="white")
            at, beside = (("left", 1.5), ("right", 21.5))[host]  # no arrow comes by there
            label(axes, left + beside, 25, f"host{host}", at=at, size=FOOT)
            ranks = ((left + 1 + 11 * k, 10, f"rank {2 * host + k}") for k in range(2))
            boxes(axes, 2.5, 7.5, *ranks, colour=tint)
    for host in range(2):
        left, agent = 25 * host, 63.5 + 25 * host
        box(axes, agent - 8.5, 16, 17, 5.5, "torchrun", colour=LIGHT.orange)
        arrows(axes, (72 + 8 * host, 33, agent, 22), colour=BLUE)
        for x in (left + 6, left + 17):
            arrows(axes, (20 + 8 * host, 33, x, 10.4), (agent, 15.7, x + 52, 10.4), colour=BLUE)
    arrow(axes, (72.4, 18.8), (79.6, 18.8), style="<->", colour=VERMILLION)
    label(axes, 76, 29.7, "rendezvous", ink=VERMILLION, size=FOOT)


@styled
def link_sweep(sweeps: dict[str, tuple[Run, list[dict]]], bytes_per_second: float) -> Figure:
    """Draw ms of an all-reduce of two ranks by size: {where: (run, rows)}, and the link's rate."""
    title = "An all-reduce of two ranks, by its size"
    figure, axes = begin(title, 5.6, grid="y")
    says = []
    for number, (where, (_, rows)) in enumerate(sweeps.items()):
        sizes, times = [[row[name] for row in rows] for name in ("bytes", "seconds")]
        look = {"color": (BLUE, VERMILLION)[number], "marker": "os"[number], "markersize": 6}
        axes.plot(sizes, [1e3 * seconds for seconds in times], label=where, **look)
        ends = zip((size(sizes[0]), size(sizes[-1])), (times[0], times[-1]), strict=True)
        says.append(f"{where} {', '.join(f'{of}: {time(seconds)}' for of, seconds in ends)}")
    large = [count for count in sizes if count >= 2**15]
    by_rate = [1e3 * count / bytes_per_second for count in large]
    axes.plot(large, by_rate, "--", color=BLACK, label="bytes / rate of the link")
    log_axis(axes.xaxis, TICKS, TICKS.values(), base=2)
    axes.set(yscale="log", xlabel="bytes that are added up", ylabel="milliseconds of one call")
    axes.yaxis.set_major_formatter("{x:g}")
    legend(figure, axes.get_lines())
    return finish(figure, [run for run, _ in sweeps.values()], f"{title}: {'; '.join(says)}.")
