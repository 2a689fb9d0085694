"""Diagrams of lessons 09 and 09b: starting ranks, a link's speed, failures, requeueing."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, diagram, label
from bootcamp.drawing.charts import log_axis
from bootcamp.drawing.palette import BLACK, BLUE, LIGHT, VERMILLION
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled
from bootcamp.records.runs import Run
from bootcamp.units import size, time

TICKS = {4: "4 B", 2**10: "1 KiB", 2**15: "32 KiB", 2**20: "1 MiB"}


@diagram("Who starts the ranks of two hosts", 4.4)
def rank_starters(axes) -> None:
    """Two ways to start ranks, each on two hosts. Left: srun starts four tasks, two on each host,
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
            at, beside = (("left", 1.5), ("right", 21.5))[host]  # where no arrow passes
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
    """Draw an all-reduce's time by size, and bytes / link rate; sweeps: {place: (run, rows)}."""
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


@diagram("What the other hosts hear", 4.4)
def signs_of_failure(axes) -> None:
    """Three failures of host1, and what host0 hears. A process dies: host1's kernel closes its
    connections, and host0 hears of it at once, "closed by peer". The host loses power or its
    network: nobody says anything, and host0 waits for its timeout. A rank waits for something
    else: its connections stay open, and host0 waits for its timeout as well.
    """
    for y, title, there, heard in (
        (30, "a process dies", "the kernel lives, and\ncloses its connections", "closed by peer"),
        (16, "a host goes silent", "no power, no network:\nnobody closes anything", "nothing"),
        (2, "a rank hangs", "its connections stay open,\nit sends nothing", "nothing"),
    ):
        label(axes, 0, y + 5.5, title, at="left", bold=True)
        box(axes, 72, y, 28, 11, f"host1\n{there}", colour=LIGHT.red, size=FOOT)
        waits, colour, ink = ("waits for its timeout", LIGHT.orange, VERMILLION)
        if heard != "nothing":
            waits, colour, ink = "hears of it at once", LIGHT.green, BLUE
        box(axes, 27, y, 22, 11, f"host0\n{waits}", colour=colour, size=FOOT)
        arrow(axes, (71.5, y + 5), (49.5, y + 5), colour=ink)
        label(axes, 60.5, y + 8, heard, ink=ink, bold=True, size=FOOT)


@diagram("A job that is told of its end", 3.4)
def requeued_job(axes) -> None:
    """A timeline. Slurm sends USR1 to the job file's shell a minute before the time limit. The
    shell creates a stop file. After a step all ranks agree that it is there, save, and end. The
    shell requeues the job. Later it starts on any hosts and continues from the saved step. A note:
    KILL comes KillWait seconds after TERM, too late to save.
    """
    steps = (
        (0, 18, "Slurm\nUSR1 to the shell,\na minute before\nthe limit", LIGHT.orange),
        (20.5, 18, "job file\ncreates a\nstop file", LIGHT.blue),
        (41, 18, "ranks\nagree after a step,\nsave, end", LIGHT.green),
        (61.5, 18, "job file\nscontrol requeue", LIGHT.blue),
        (82, 18, "later, anywhere\n--resume from the\nsaved step", LIGHT.green),
    )
    boxes(axes, 10, 16, *steps, size=FOOT)
    arrows(axes, *((x - 2.3, 18, x - 0.2, 18) for x, *_ in steps[1:]))
    label(axes, 50, 4, "KILL comes KillWait seconds after TERM: too late to save", ink=VERMILLION)
