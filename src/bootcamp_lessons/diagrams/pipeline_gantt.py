"""Lesson 06b: schedules as Gantt charts, in theory and as measured; what ranks hold."""

import itertools

from matplotlib.figure import Figure

from bootcamp.costs import pipeline_schedules as schedules
from bootcamp.drawing.charts import handles, rows
from bootcamp.drawing.palette import GREEN, GREY, INK, LIGHT, ORANGE, PALE, SKY, YELLOW
from bootcamp.drawing.style import begin, finish, legend, styled

LOOKS = {  # of an action: colour, hatch, what it is
    "F": (SKY, "", "forward"),
    "B": (ORANGE, "", "backward"),
    "I": (YELLOW, "", "backward, half I: of the input"),
    "W": (LIGHT.mint, "//", "half W: of the weights"),
}
FORWARDS = "one unit: the forward of one micro-batch on a rank"
INCHES = 8.6  # how wide the axes of a chart are, about


@styled
def gantt(charts: dict[str, list], title: str, unit: str = FORWARDS, scale: float = 1.0) -> Figure:
    """When each rank computes which micro-batch: one chart below the other, on the same scale.

    charts: {name: spans}, from schedules.simulate or Run.actions.
    unit: what the axis counts. scale: how many of these there are in a second of the spans.
    """
    heights = [0.75 + 0.3 * len(schedules.by_rank(spans)) for spans in charts.values()]
    shape = {"nrows": len(charts), "height_ratios": heights}
    figure, axes = begin(title, 1.6 + sum(heights), sharex=True, squeeze=False, **shape)
    longest = max(schedules.makespan(spans) for spans in charts.values()) * scale
    says = []
    for panel, (name, spans) in zip(axes[:, 0], charts.items(), strict=True):
        _draw_chart(panel, spans, longest, scale)
        words = f"{name}: {facts(spans)}"
        panel.set_title(words, loc="left", fontsize=12)
        says.append(f"{words}, {schedules.makespan(spans) * scale:.3g} long")
    axes[-1, 0].set_xlabel(f"time ({unit})")
    kinds = {span.action.kind for spans in charts.values() for span in spans}
    looks = {what: look for kind, (*look, what) in LOOKS.items() if kind in kinds}
    legend(figure, handles({**looks, "waits": (GREY, "")}))
    two = any(_stages_of(spans) > 1 for spans in charts.values())
    other = "; bold ones on a darker ground: the rank's other stage" if two else ""
    says = f"{title}. {'; '.join(says)}. Time in {unit}."
    return finish(figure, (), says, (f"The numbers are micro-batches{other}.",))


def whole_and_cut() -> Figure:
    """A batch on four ranks, in one piece and cut into eight micro-batches. By theory."""
    whole = schedules.simulate(schedules.plan("gpipe", 4, 1), 8, 16)
    charts = {"in one piece": whole, "8 micro-batches": schedules.timetable("gpipe", 4, 8)}
    return gantt(charts, "The same batch on four ranks: in one piece, and cut into eight")


def in_theory(*names: str) -> Figure:
    """Schedules of 4 ranks and 8 micro-batches on one scale."""
    charts = {name: schedules.timetable(name, 4, 8) for name in names}
    return gantt(charts, "4 ranks, 8 micro-batches, the same work")


def facts(spans: list) -> str:
    """Bubble and activations of a timetable in a few words.

    In flight: micro-batches; half a one is held of one of a rank's two stages.
    """
    most = [f"{held / _stages_of(spans):g}" for held in schedules.most_in_flight(spans)]
    return f"bubble {schedules.bubble(spans):.2f}, in flight at most {', '.join(most)}"


def _draw_chart(axes, spans: list, longest: float, scale: float) -> None:
    ranks = schedules.by_rank(spans)
    whole = schedules.makespan(spans) * scale
    for rank, of_rank in enumerate(ranks):
        lower = min(span.action.stage for span in of_rank)
        axes.broken_barh([(0, whole)], (rank - 0.42, 0.84), facecolor=GREY, linewidth=0)
        for kind, other in itertools.product(LOOKS, (False, True)):
            look = (kind, other)
            group = [s for s in of_rank if (s.action.kind, s.action.stage != lower) == look]
            _draw_actions(axes, rank, group, other, longest, scale)
    axes.set_xlim(0, 1.005 * longest)
    rows(axes, [f"rank {rank}" for rank in range(len(ranks))], beside=0.55)
    axes.tick_params(axis="y", labelsize=11)
    axes.spines["left"].set_visible(False)


def _draw_actions(axes, rank: int, spans: list, other: bool, longest: float, scale: float) -> None:
    """Boxes of one look, together, since many single ones take long; and their numbers if they fit.

    other: whether they are of the rank's second stage.
    """
    if not spans:
        return
    colour, hatch, _ = LOOKS[spans[0].action.kind]
    boxes = [(span.began * scale, (span.ended - span.began) * scale) for span in spans]
    looks = [{"facecolor": colour, "edgecolor": GREEN, "linewidth": 0, "hatch": hatch}]
    looks += [{"facecolor": "black", "alpha": 0.22, "linewidth": 0}] if other else []
    for look in [*looks, {"facecolor": "none", "edgecolor": INK, "linewidth": 0.6}]:
        axes.broken_barh(boxes, (rank - 0.42, 0.84), **look)
    weight = "bold" if other else "normal"
    for (begin_at, width), span in zip(boxes, spans, strict=True):
        number = str(span.action.micro_batch)
        if width / longest * INCHES > 0.105 * len(number):
            middle = (begin_at + width / 2, rank + 0.02)
            axes.text(*middle, number, ha="center", va="center", fontsize=11, fontweight=weight)


def _stages_of(spans: list) -> int:
    return len({span.action.stage for span in spans if span.rank == 0})


@styled
def held_by_schedule(table: list[dict], origin: str) -> Figure:
    """What the ranks hold at their peaks: measured as bars, the formula as marks.

    table: rows of `schedule`, `rank`, `measured` and `formula` in MB; of a schedule by rank.
    """
    figure, axes = begin("Held for the backward at the peak, by schedule", 4.6, grid="y")
    names = list(dict.fromkeys(row["schedule"] for row in table))
    looks = ((SKY, ""), (GREEN, "//"), (ORANGE, "\\\\"), (PALE, "xx"))
    ranks = sorted({row["rank"] for row in table})
    width = 0.8 / len(ranks)
    for rank, (colour, hatch) in zip(ranks, itertools.cycle(looks), strict=False):
        mine = [row for row in table if row["rank"] == rank]
        shift = width * (rank - (len(ranks) - 1) / 2)
        places = [names.index(row["schedule"]) + shift for row in mine]
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        heights = [row["measured"] for row in mine]
        axes.bar(places, heights, 0.92 * width, label=f"rank {rank}", **look)
        named = {"label": "by formula"} if rank == ranks[-1] else {}
        axes.plot(places, [row["formula"] for row in mine], "_", color=INK, markersize=18, **named)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("MB")
    legend(figure, axes.get_legend_handles_labels()[0])
    says = "; ".join(f"{r['schedule']} rank {r['rank']}: {r['measured']:.1f} MB" for r in table)
    return finish(figure, (), f"Held for the backward at the peak. {says}. {origin}", (origin,))
