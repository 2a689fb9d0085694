"""The pictures of notebook 06b: schedules as charts, in theory and as measured; what ranks hold."""

import itertools

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import BLUE, GREEN, INK, ORANGE, PALE, SKY, VERMILLION, YELLOW
from bootcamp.drawing.style import FOOT, begin, legend, styled
from bootcamp.theory import pipeline_schedules

LOOKS = {  # of an action: colour, hatch, what it is
    "F": (SKY, "", "forward"),
    "B": (ORANGE, "", "backward"),
    "I": (YELLOW, "", "backward, half I: of the input"),
    "W": ("#5DB899", "//", "half W: of the weights"),
}
WAITS, HATCH = "#E4E4E4", "#9FDCC7"
FORWARDS = "one unit: the forward of one micro-batch on a rank"
INCHES = 8.6  # how wide the axes of a chart are, about


@styled
def cut_model() -> Figure:
    """The layers of a model over four ranks; micro-batches go down, gradients come back."""
    says = (
        "The layers are cut into four stages, one for each rank. Activations of a micro-batch go "
        "from each stage to the next, gradients of these activations go back. No rank sends its "
        "parameters or their gradients to another."
    )
    figure, axes = canvas("A pipeline: each rank holds some of the layers", says, 2.4)
    for rank in range(4):
        x = 9 + 22 * rank
        text = f"rank {rank}: stage {rank}\nits parameters,\nits optimizer state"
        box(axes, x, 7, 16, 11, text, colour="#D6ECFA", size=11)
        if rank < 3:
            arrow(axes, (x + 16.2, 15), (x + 21.8, 15), colour=BLUE)
            arrow(axes, (x + 21.8, 10), (x + 16.2, 10), colour=VERMILLION)
    arrow(axes, (1, 15), (8.8, 15), colour=BLUE)
    label(axes, 4, 19.6, "bytes", at="center")
    arrow(axes, (91.2, 15), (97, 15), colour=BLUE)
    label(axes, 96, 19.6, "loss")
    label(
        axes, 50, 21.5, "activations: forward, micro-batch after micro-batch", ink=BLUE, bold=True
    )
    label(axes, 50, 3, "their gradients: backward", ink=VERMILLION, bold=True)
    return figure


@styled
def gantt(charts: dict[str, list], title: str, unit: str = FORWARDS, scale: float = 1.0) -> Figure:
    """When each rank computes which micro-batch: one chart below the other, on the same scale.

    charts: {name: spans}, from schedules.simulate or schedules.recorded.
    unit: what the axis counts. scale: how many of these there are in a second of the spans.
    """
    heights = [0.75 + 0.3 * len(pipeline_schedules.by_rank(spans)) for spans in charts.values()]
    figure, axes = begin(
        title,
        1.6 + sum(heights),
        nrows=len(charts),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    longest = max(pipeline_schedules.makespan(spans) for spans in charts.values()) * scale
    says = []
    for axis, (name, spans) in zip(axes[:, 0], charts.items(), strict=True):
        draw_chart(axis, spans, longest, scale)
        axis.set_title(f"{name}: {facts(spans)}", loc="left", fontsize=12)
        says.append(
            f"{name}: {facts(spans)}, {pipeline_schedules.makespan(spans) * scale:.3g} long"
        )
    axes[-1, 0].set_xlabel(f"time ({unit})")
    two = any(_stages_of(spans) > 1 for spans in charts.values())
    legend(figure, _handles(charts.values()))
    if two:
        note = (
            "The numbers are micro-batches; bold ones on a darker ground: the rank's other stage."
        )
    else:
        note = "The numbers are micro-batches."
    figure.supxlabel(note, x=0.012, ha="left", fontsize=FOOT)
    figure.alt = f"{title}. {'; '.join(says)}. Time in {unit}."
    return figure


def facts(spans: list) -> str:
    """Bubble and activations of a timetable in a few words.

    In flight: micro-batches; half a one is held of one of a rank's two stages.
    """
    most = [f"{held / _stages_of(spans):g}" for held in pipeline_schedules.most_in_flight(spans)]
    return f"bubble {pipeline_schedules.bubble(spans):.2f}, in flight at most {', '.join(most)}"


def draw_chart(axes, spans: list, longest: float, scale: float = 1.0) -> None:
    """One chart: a row for each rank, a box for each action, grey where the rank waits."""
    ranks = pipeline_schedules.by_rank(spans)
    whole = pipeline_schedules.makespan(spans) * scale
    for rank, of_rank in enumerate(ranks):
        lower = min(span.action.stage for span in of_rank)
        axes.broken_barh([(0, whole)], (rank - 0.42, 0.84), facecolor=WAITS, linewidth=0)
        for kind, other in itertools.product(LOOKS, (False, True)):
            group = [
                s for s in of_rank if (s.action.kind, s.action.stage != lower) == (kind, other)
            ]
            _draw_actions(axes, rank, group, other, longest, scale)
    axes.set_xlim(0, 1.005 * longest)
    axes.set_ylim(len(ranks) - 0.45, -0.55)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))], fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_actions(axes, rank: int, spans: list, other: bool, longest: float, scale: float) -> None:
    """Boxes of one look, together, since many single ones take long; and their numbers if they fit.

    other: whether they are of the rank's second stage.
    """
    if not spans:
        return
    colour, hatch, _ = LOOKS[spans[0].action.kind]
    boxes = [(span.began * scale, (span.ended - span.began) * scale) for span in spans]
    looks = [{"facecolor": colour, "edgecolor": HATCH, "linewidth": 0, "hatch": hatch}]
    looks += [{"facecolor": "black", "alpha": 0.22, "linewidth": 0}] if other else []
    for look in [*looks, {"facecolor": "none", "edgecolor": INK, "linewidth": 0.6}]:
        axes.broken_barh(boxes, (rank - 0.42, 0.84), **look)
    weight = "bold" if other else "normal"
    for (begin_at, width), span in zip(boxes, spans, strict=True):
        number = str(span.action.micro_batch)
        if width / longest * INCHES > 0.085 * len(number):
            middle = (begin_at + width / 2, rank + 0.02)
            axes.text(*middle, number, ha="center", va="center", fontsize=9, fontweight=weight)


def _stages_of(spans: list) -> int:
    return len({span.action.stage for span in spans if span.rank == 0})


def _handles(timetables) -> list[Patch]:
    kinds = {span.action.kind for spans in timetables for span in spans}
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.6, label=what)
        for kind, (colour, hatch, what) in LOOKS.items()
        if kind in kinds
    ]
    return [*handles, Patch(facecolor=WAITS, label="waits")]


@styled
def explored(schedule: str, ranks: int, micro_batches: int, measured: list | None = None) -> Figure:
    """A schedule with these numbers: its chart, its bubble, its activations, and a run below it.

    measured: spans of a run of this schedule; then theory has that run's median durations.
    """
    plan = pipeline_schedules.plan(schedule, ranks, micro_batches)
    chunks = pipeline_schedules.CHUNKS[schedule]
    if measured is None:
        spans = pipeline_schedules.simulate(plan, 1 / chunks, 2 / chunks)
        charts, unit, scale = {"in theory": spans}, FORWARDS, 1.0
    else:
        spans = pipeline_schedules.simulate(plan, **pipeline_schedules.measured_seconds(measured))
        charts, unit, scale = {"in theory": spans, "measured": measured}, "milliseconds", 1e3
    title = f"{schedule}, {ranks} ranks, {micro_batches} micro-batches"
    rows = [0.8 + 0.3 * ranks] * len(charts) + [2.2]
    figure, _ = begin(title, 1.5 + sum(rows), squeeze=False)
    figure.clear()
    begin_again = {"height_ratios": rows, "width_ratios": (1, 1)}
    grid = figure.add_gridspec(len(rows), 2, **begin_again)
    figure.suptitle(title, x=0.012, ha="left")
    longest = scale * max(pipeline_schedules.makespan(each) for each in charts.values())
    for row, (name, each) in enumerate(charts.items()):
        axes = figure.add_subplot(grid[row, :])
        draw_chart(axes, each, longest, scale)
        axes.set_title(f"{name}: {facts(each)}", loc="left", fontsize=12)
        axes.set_xlabel(f"time ({unit})" if row == len(charts) - 1 else "")
    _bubble_by_micro_batches(figure.add_subplot(grid[-1, 0]), schedule, ranks, micro_batches)
    shares = _held(figure.add_subplot(grid[-1, 1]), spans, chunks, micro_batches)
    legend(figure, _handles(charts.values()))
    figure.alt = (
        f"{title}. {'; '.join(f'{name}: {facts(each)}' for name, each in charts.items())}. Of the "
        f"whole batch's activations the ranks hold at most {', '.join(shares)}."
    )
    return figure


def _bubble_by_micro_batches(axes, schedule: str, ranks: int, micro_batches: int) -> None:
    """How the bubble falls with the number of micro-batches, and where the chosen number is."""
    points = []
    for m in range(1, max(33, micro_batches + 1)):
        try:
            spans = pipeline_schedules.simulate(pipeline_schedules.plan(schedule, ranks, m))
        except pipeline_schedules.Impossible:
            continue
        points.append((m, pipeline_schedules.bubble(spans)))
    axes.plot(*zip(*points, strict=True), ".-", color=BLUE, linewidth=1.5, markersize=5)
    axes.plot(micro_batches, dict(points)[micro_batches], "o", color=VERMILLION)
    axes.set_ylim(0)
    axes.set_xlabel("micro-batches")
    axes.set_title("bubble (idle / busy), equal stages", loc="left", fontsize=12)
    axes.grid()


def _held(axes, spans: list, chunks: int, micro_batches: int) -> list[str]:
    """Activations at their peak, as a share of what the whole batch's would be, on each rank."""
    most = pipeline_schedules.most_in_flight(spans)
    shares = [100 * held / (chunks * micro_batches) for held in most]
    axes.bar(range(len(most)), shares, color=GREEN, width=0.6)
    for rank, (share, held) in enumerate(zip(shares, most, strict=True)):
        words = f"{held / chunks:g}"
        axes.annotate(words, (rank, share), (0, 2), textcoords="offset points", ha="center")
    axes.axhline(100, color=PALE, linewidth=1, linestyle=":")
    axes.set_ylim(0, 135)
    axes.set_xticks(range(len(most)))
    axes.set_xlabel("rank")
    axes.set_title("peak activations, % of the batch's", loc="left", fontsize=12)
    return [f"{share:.0f} %" for share in shares]


@styled
def held_by_schedule(rows: list[dict], origin: str) -> Figure:
    """What the ranks hold at their peaks: measured as bars, the formula as marks.

    rows: `schedule`, `rank`, `measured` and `formula` in MB, ranks within a schedule in order.
    """
    figure, axes = begin("Held for the backward at the peak, by schedule", 4.6)
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    looks = ((SKY, ""), (GREEN, "//"), (ORANGE, "\\\\"), (PALE, "xx"))
    ranks = sorted({row["rank"] for row in rows})
    width = 0.8 / len(ranks)
    for rank in ranks:
        mine = [row for row in rows if row["rank"] == rank]
        places = [
            names.index(row["schedule"]) + width * (rank - (len(ranks) - 1) / 2) for row in mine
        ]
        colour, hatch = looks[rank % len(looks)]
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(
            places, [row["measured"] for row in mine], 0.92 * width, label=f"rank {rank}", **look
        )
        named = {"label": "by formula"} if rank == ranks[-1] else {}
        axes.plot(places, [row["formula"] for row in mine], "_", color=INK, markersize=18, **named)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("MB")
    axes.grid(axis="y")
    legend(figure, axes.get_legend_handles_labels()[0])
    figure.supxlabel(origin, x=0.012, ha="left", fontsize=FOOT)
    said = (f"{r['schedule']} rank {r['rank']}: {r['measured']:.1f} MB" for r in rows)
    figure.alt = f"Held for the backward at the peak. {'; '.join(said)}. {origin}"
    return figure
