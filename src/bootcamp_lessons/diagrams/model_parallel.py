"""Lesson 06: three cuts of a model, what fits, who works when, what a layer costs."""

from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bootcamp.costs import pipeline_schedules
from bootcamp.costs.pipeline_schedules import Span
from bootcamp.drawing.canvas import arrow, box, diagram, label
from bootcamp.drawing.charts import bar, handles, log_axis, margin, rows
from bootcamp.drawing.palette import BLUE, INK, LIGHT, ORANGE, PALE, SKY, VERMILLION, line_look
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.records.runs import Run

FIRST, SECOND = LIGHT.blue, LIGHT.orange  # the two devices

ACTIONS = {  # as pipeline_stages.record_actions names them
    "F": ("forward", SKY, ""),
    "B": ("backward", ORANGE, "//"),
}


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
        _held(axes, x, tall=name != "matrices")
    parts = range(4)
    first = [("F", k, 1) for k in parts] + [("B", 7 + 2 * k, 2) for k in parts]
    second = [("F", 1 + k, 1) for k in parts] + [("B", 5 + 2 * k, 2) for k in parts]
    both = [("F", 1.15 * k, 1) for k in parts] + [("B", 4.6 + 2.15 * k, 2) for k in parts]
    _times(axes, 0, [("F", 0, 4), ("B", 16, 8)], [("F", 4, 4), ("B", 8, 8)])
    _times(axes, 35, first, second)
    _times(axes, 70, both, both)


def _held(axes, x: float, tall: bool) -> None:
    """Four layers on two devices: two complete ones each, or half of every one."""
    for device, colour in enumerate((FIRST, SECOND)):
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


def _times(axes, x: float, first: list, second: list) -> None:
    """Two lanes of work, 24 units of time wide: (action, begin, length)."""
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
def what_fits(needs: dict[str, list[tuple[float, float]]], devices: dict[str, float]) -> Figure:
    """Draw needs {words: [(parameters, GB)]}, by formula, and devices {name: GB}, published."""
    title = "What a training needs, and what a device has"
    figure, axes = begin(title, 6.2, grid="y")
    says = []
    for number, (words, points) in enumerate(needs.items()):
        axes.plot(*zip(*points, strict=True), label=words, **line_look(number))
        says.append(f"{words}: {points[0][1]:.1f} to {points[-1][1]:.0f} GB")
    for name, gigabytes in devices.items():
        axes.axhline(gigabytes, color=PALE, linestyle="--", linewidth=1.5)
        margin(axes, gigabytes, name, x=1.01)
    axes.axvline(500e6, color=VERMILLION, linestyle=":", linewidth=2)
    ticks = (1e8, 2e8, 5e8, 1e9)
    log_axis(axes.xaxis, ticks, [f"{tick / 1e6:,.0f} M" for tick in ticks])
    log_axis(axes.yaxis, (1, 2, 5, 10, 20, 50, 100, 200))
    axes.set(xlabel="parameters", ylabel="GB")
    legend(figure, axes.get_lines()[: len(needs)])
    note = "Curves: formula, float32, AdamW. Dashed: published; of two sizes of a GPU the smaller."
    sizes = "; ".join(f"{name} {gigabytes:g} GB" for name, gigabytes in devices.items())
    return finish(figure, (), f"{title}. {'; '.join(says)}. Devices: {sizes}.", (note,))


def at_once(spans: list[Span]) -> int:
    """The most ranks that compute in one moment of a step."""
    return max(sum(a.began <= b.began < a.ended for a in spans) for b in spans)


def most_at_once(run: Run) -> int:
    """The most ranks that compute in one moment, over all steps of a run."""
    return max(at_once(run.actions(row["step"])) for row in run.steps)


@styled
def who_works(run: Run) -> Figure:
    """The step of median length of a pipeline: each rank's forwards and backwards over time."""
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
    busy = 1 - fmean(pipeline_schedules.idle_share(spans))
    note = f"The step of median length. All ranks together worked {100 * busy:.0f} % of their time."
    return finish(figure, [run], f"{'; '.join(says)}. {note}", (note,))


@styled
def stage_costs(stages: list[dict], cut: int) -> Figure:
    """Draw each layer's share of parameters, activations and time.

    stages: as src/snippets/stage_costs.py prints them. cut: the first layer behind the cut.
    """
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
    return finish(figure, (), f"{title}. {'; '.join(says)}.", (note,))
