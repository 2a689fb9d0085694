"""Lessons 06 and 06b: cuts of a model, what fits, schedules in theory and as measured."""

import itertools
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bootcamp import quietness
from bootcamp.costs import pipeline_schedules as schedules
from bootcamp.drawing import palette
from bootcamp.drawing.canvas import arrow, box, diagram, label
from bootcamp.drawing.charts import bar, handles, log_axis, margin, rows
from bootcamp.drawing.palette import BLUE, GREEN, GREY, INK, LIGHT, ORANGE, PALE, SKY
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.records.runs import Run

# as pipeline_stages.record_actions names them
ACTIONS = {"F": ("forward", SKY, ""), "B": ("backward", ORANGE, "//")}


@diagram("Three ways to cut one model over two devices", 4.9)
def three_cuts(axes) -> None:
    """Each of two devices holds half of the model. Layers: device 0 holds layers 1 and 2, device 1
    layers 3 and 4; the batch passes through device 0, then through device 1, and back, so one of
    them always waits. Pipeline: the same cut, but the batch comes in four parts, so that both work
    most of the time. Matrices: each device holds one half of every layer; both work on the full
    batch at once, and add up their results in every layer.
    """
    for x, name, idea in (
        (0, "layers", "this lesson"),
        (35, "pipeline", "the same cut, the batch in parts: 06b"),
        (70, "matrices", "every layer cut: 06c"),
    ):
        label(axes, x + 15, 47, name, bold=True, size=15)
        label(axes, x + 15, 43.6, idea, size=11)
        _draw_layers(axes, x, tall=name != "matrices")
    parts = range(4)
    first = [("F", k, 1) for k in parts] + [("B", 7 + 2 * k, 2) for k in parts]
    second = [("F", 1 + k, 1) for k in parts] + [("B", 5 + 2 * k, 2) for k in parts]
    both = [("F", 1.15 * k, 1) for k in parts] + [("B", 4.6 + 2.15 * k, 2) for k in parts]
    _draw_timeline(axes, 0, [("F", 0, 4), ("B", 16, 8)], [("F", 4, 4), ("B", 8, 8)])
    _draw_timeline(axes, 35, first, second)
    _draw_timeline(axes, 70, both, both)


def _draw_layers(axes, x: float, tall: bool) -> None:
    for device, colour in enumerate((LIGHT.blue, LIGHT.orange)):
        left = x + 15.5 * device
        label(axes, left + 7, 39.6, f"device {device}", size=11)
        for row in range(2 if tall else 4):
            name = f"layer {2 * device + row + 1}" if tall else f"half of {row + 1}"
            y, height = (31.5 - 6.5 * row, 5) if tall else (33.2 - 3.9 * row, 3.2)
            box(axes, left + 1, y, 12, height, name, colour=colour, size=11)
            if device and not tall:
                arrow(axes, (x + 13, y + 1.6), (x + 16.7, y + 1.6), style="<->")
    if tall:
        arrow(axes, (x + 13.2, 30.8), (x + 16.4, 30.8), colour=INK)
        label(axes, x + 14.8, 22, "activations →\n← their gradient", size=11)
    else:
        label(axes, x + 14.8, 18.4, "sums, in every layer", size=11)


def _draw_timeline(axes, x: float, first: list, second: list) -> None:
    """Draw the work of two devices, (action, begin, length) in a time of 24 units."""
    wide = 24.5 / 24
    for y, device, lane in ((9, 0, first), (3.6, 1, second)):
        label(axes, x + 0.2, y + 2, f"{device}", size=11, bold=True)
        frame = {"facecolor": "white", "edgecolor": PALE, "linestyle": ":"}
        axes.add_patch(Rectangle((x + 2.2, y), 24 * wide, 4, **frame))
        for action, start, length in lane:
            left = x + 2.2 + start * wide
            look = {"facecolor": ACTIONS[action][1], "edgecolor": INK, "linewidth": 1}
            axes.add_patch(Rectangle((left, y + 0.3), length * wide, 3.4, **look))
            label(axes, left + length * wide / 2, y + 2, action, size=11)
    arrow(axes, (x + 2, 1.3), (x + 28, 1.3), colour=PALE)
    label(axes, x + 15, 15, "who works when (schematic)", size=11)


@styled
def memory_needs(needs: dict[str, list[tuple[float, float]]], devices: dict[str, float]) -> Figure:
    """Draw needs {name: [(parameters, GB)]}, by formula, and devices {name: GB}, published."""
    title = "What a training needs, and what a device has"
    figure, axes = begin(title, 6.2, grid="y")
    says = []
    for number, (words, points) in enumerate(needs.items()):
        axes.plot(*zip(*points, strict=True), label=words, **palette.line_look(number))
        says.append(f"{words}: {points[0][1]:.1f} to {points[-1][1]:.0f} GB")
    for name, gigabytes in devices.items():
        axes.axhline(gigabytes, color=PALE, linestyle="--", linewidth=1.5)
        margin(axes, gigabytes, name, x=1.01)
    ticks = (1e8, 2e8, 5e8, 1e9)
    log_axis(axes.xaxis, ticks, [f"{tick / 1e6:,.0f} M" for tick in ticks])
    log_axis(axes.yaxis, (1, 2, 5, 10, 20, 50, 100, 200))
    axes.set(xlabel="parameters", ylabel="GB")
    legend(figure, axes.get_lines()[: len(needs)])
    note = "Curves: formula, float32, AdamW. Dashed: published; of two sizes of a GPU the smaller."
    sizes = "; ".join(f"{name} {gigabytes:g} GB" for name, gigabytes in devices.items())
    return finish(figure, (), f"{title}. {'; '.join(says)}. Devices: {sizes}.", (note,))


def most_active_ranks(run: Run) -> int:
    """Return the most ranks that compute at one moment of a run."""
    steps = [run.actions(row["step"]) for row in run.steps]
    return max(sum(a.began <= b.began < a.ended for a in spans) for spans in steps for b in spans)


@styled
def one_step(run: Run) -> Figure:
    """Draw each rank's forwards and backwards in a run's step of median length."""
    spans = run.actions()
    figure, axes = begin(f"Who works when: one step on {run.world} ranks", 1.9 + 0.7 * run.world)
    says = []
    for span in spans:
        name, *look = ACTIONS[span.action.kind]
        start, length = 1e3 * span.began, 1e3 * (span.ended - span.began)
        bar(axes, span.rank, length, look, start)
        says.append(f"rank {span.rank} {name} from {start:.1f} to {start + length:.1f} ms")
    rows(axes, [f"rank {rank}" for rank in range(run.world)])
    axes.set_xlabel("milliseconds since the step's first forward began")
    axes.grid(axis="x")
    legend(figure, handles({name: look for name, *look in ACTIONS.values()}))
    busy = 1 - fmean(schedules.idle_share(spans))
    note = f"The step of median length. All ranks together worked {100 * busy:.0f} % of their time."
    return finish(figure, [run], f"{'; '.join(says)}. {note}", (note,))


@styled
def stage_costs(stages: list[dict], cut: int) -> Figure:
    """Draw each layer's share of the costs; stages: what stage_costs.py printed."""
    costs = {
        "parameters": ([stage["parameter_bytes"] for stage in stages], BLUE, ""),
        "activations": ([stage["activation_bytes"] for stage in stages], ORANGE, "//"),
        "time": ([s["forward_seconds"] + s["backward_seconds"] for s in stages], SKY, ".."),
    }
    title, width, says = "What each layer costs: its share of the model", 0.27, []
    figure, axes = begin(title, 4.8, grid="y")
    for place, (kind, (values, colour, hatch)) in enumerate(costs.items()):
        shares = [100 * value / sum(values) for value in values]
        where = [number + width * (place - 1) for number in range(len(stages))]
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
        axes.bar(where, shares, width=width, label=kind, **look)
        says.append(f"{kind}: {sum(shares[:cut]):.0f} % before the cut")
    axes.axvline(cut - 0.5, color=INK, linestyle="--", linewidth=2)
    axes.set_xticks(range(len(stages)), [stage["stage"] for stage in stages], fontsize=SMALL)
    axes.set_ylabel("share, %")
    legend(figure, axes.containers)
    note = "Dashed: the cut at half the layers. Measured here on one CPU core, fastest of several."
    quiet = quietness.read_last(quietness.FOOT_SECONDS)
    notes = (note, quiet.foot) if quiet else (note,)
    return finish(figure, (), f"{title}. {'; '.join(says)}.", notes)


LOOKS = {  # of an action: colour, hatch, what it is
    "F": (SKY, "", "forward"),
    "B": (ORANGE, "", "backward"),
    "I": (palette.YELLOW, "", "backward, half I: of the input"),
    "W": (LIGHT.mint, "//", "half W: of the weights"),
}
FORWARDS = "one unit: the forward of one micro-batch on a rank"
INCHES = 8.6  # the width of a chart's axes, about


@styled
def gantt(charts: dict[str, list], title: str, unit: str = FORWARDS, scale: float = 1.0) -> Figure:
    """Draw schedules as Gantt charts on one scale.

    charts: {name: spans}, of schedules.simulate or Run.actions. unit: of the axis; scale: to it.
    """
    heights = [0.75 + 0.3 * len(schedules.group_by_rank(spans)) for spans in charts.values()]
    shape = {"nrows": len(charts), "height_ratios": heights}
    figure, axes = begin(title, 1.6 + sum(heights), sharex=True, squeeze=False, **shape)
    longest = max(schedules.makespan(spans) for spans in charts.values()) * scale
    says = []
    for panel, (name, spans) in zip(axes[:, 0], charts.items(), strict=True):
        _draw_chart(panel, spans, longest, scale)
        words = f"{name}: {describe(spans)}"
        panel.set_title(words, loc="left", fontsize=12)
        says.append(f"{words}, {schedules.makespan(spans) * scale:.3g} long")
    axes[-1, 0].set_xlabel(f"time ({unit})")
    kinds = {span.action.kind for spans in charts.values() for span in spans}
    looks = {what: look for kind, (*look, what) in LOOKS.items() if kind in kinds}
    legend(figure, handles({**looks, "waits": (GREY, "")}))
    two = any(_count_stages(spans) > 1 for spans in charts.values())
    other = "; bold ones on a darker ground: the rank's other stage" if two else ""
    says = f"{title}. {'; '.join(says)}. Time in {unit}."
    return finish(figure, (), says, (f"The numbers are micro-batches{other}.",))


def whole_and_cut() -> Figure:
    """Draw the theory of a batch on four ranks, in one piece and cut into eight."""
    whole = schedules.simulate(schedules.plan("gpipe", 4, 1), 8, 16)
    charts = {"in one piece": whole, "8 micro-batches": schedules.timetable("gpipe", 4, 8)}
    return gantt(charts, "The same batch on four ranks: in one piece, and cut into eight")


def planned(*names: str) -> Figure:
    """Draw the theory of schedules for 4 ranks and 8 micro-batches."""
    charts = {name: schedules.timetable(name, 4, 8) for name in names}
    return gantt(charts, "4 ranks, 8 micro-batches, the same work")


def describe(spans: list) -> str:
    """Name a timetable's bubble, and each rank's largest number of micro-batches in flight."""
    most = [f"{held / _count_stages(spans):g}" for held in schedules.most_in_flight(spans)]
    return f"bubble {schedules.bubble(spans):.2f}, in flight at most {', '.join(most)}"


def _draw_chart(axes, spans: list, longest: float, scale: float) -> None:
    ranks = schedules.group_by_rank(spans)
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
    """Draw boxes of one look together, which is faster; other: of the rank's second stage."""
    if not spans:
        return
    colour, hatch, _ = LOOKS[spans[0].action.kind]
    boxes = [(span.began * scale, (span.ended - span.began) * scale) for span in spans]
    looks = [{"facecolor": colour, "edgecolor": GREEN, "linewidth": 0, "hatch": hatch}]
    looks += [{"facecolor": "black", "alpha": 0.22, "linewidth": 0}] if other else []
    for look in [*looks, {"facecolor": "none", "edgecolor": INK, "linewidth": 0.6}]:
        axes.broken_barh(boxes, (rank - 0.42, 0.84), **look)
    look = {"ha": "center", "va": "center", "fontweight": "bold" if other else "normal"}
    for (begin_at, width), span in zip(boxes, spans, strict=True):
        number = str(span.action.micro_batch)
        if width / longest * INCHES > 0.105 * len(number):
            axes.text(begin_at + width / 2, rank + 0.02, number, fontsize=11, **look)


def _count_stages(spans: list) -> int:
    return len({span.action.stage for span in spans if span.rank == 0})


@styled
def peak_memory(table: list[dict], origin: str) -> Figure:
    """Draw the rows of sharding_tables.compare_peaks, the formula as marks."""
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
