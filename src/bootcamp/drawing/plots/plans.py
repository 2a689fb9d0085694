"""Figures of plans, from the tables of bootcamp_lessons.planning: memory by part, all plans of a
model on a cluster with one among them, and the best plan at each number of GPUs.
"""

from textwrap import wrap

from matplotlib.figure import Figure

from bootcamp.drawing.charts import (
    BOLD,
    EDGE,
    WHITE,
    above,
    bar,
    beside,
    handles,
    log_axis,
    margin,
    rows,
    stacked,
)
from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    KINDS,
    ORANGE,
    PALE,
    PAPER,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
)
from bootcamp.drawing.style import FOOT, SMALL, begin, finish, legend, styled
from bootcamp.units import three_digits

FORMULAS = "By the planner's formulas, nothing here is measured"
WAITS = "Tensor, context, experts, data: what the step waits for their collectives."
# what a GPU holds: the first word of each is a column, *_gb
PARTS = {**KINDS, "buffers": (PURPLE, "xx")}
# parts of a step: what they are called, colour and hatch
STEP = {
    "compute": ("computes", SKY, ""),
    "host": ("launches", BLACK, ""),
    "tensor": ("tensor", ORANGE, "//"),
    "context": ("context", YELLOW, "//"),
    "expert": ("experts", GREEN, "//"),
    "data": ("data, ZeRO", VERMILLION, "\\\\"),
    "pipeline": ("hand-over", PURPLE, "xx"),
    "bubble": ("bubble", GREY, ".."),
    "optimizer": ("optimizer", BLUE, ""),
}

# Memory, part by part

SEEN = 2.5  # GPUs' memories that the axis is long at most
COUNTED = (
    f"{FORMULAS}. State: 2 + 2 + 12 bytes a parameter (AdamW with a float32 copy, "
    "arXiv:1910.02054). Activations: arXiv:2205.05198, counted in the same way for gated MLPs; "
    "with them a layer that is computed again.",
    "Buffers: scores of the loss, layers that ZeRO-3 has gathered, what the allocator reserves.",
)


@styled
def memory_by_part(table) -> Figure:
    """A stacked bar for each model and plan, with a line at the GPU's memory.

    table: rows of planning.memory_by_part, those of a model one after another. A bar too long for
    the axis ends in an arrow; what it holds stands beside it.
    """
    lines = list(table)
    gpu, largest = lines[0]["gpu_gb"], max(line["peak_gb"] for line in lines)
    limit = 1.04 * max(gpu, min(largest, SEEN * gpu))
    labelled = {}  # the models, and below each its plans
    for line in lines:
        labelled.setdefault(line["model"], [(line["model"], None)]).append((line["plan"], line))
    bars = [pair for pairs in labelled.values() for pair in pairs]
    height = max(4.0, 2.8 + 0.26 * len(bars))
    figure, axes = begin("Predicted: what one GPU holds, part by part", height)
    rows(axes, [label for label, _ in bars], beside=0.5)
    says = []
    for row, (tick, (_, line)) in enumerate(zip(axes.get_yticklabels(), bars, strict=True)):
        tick.set_fontsize(SMALL)
        if line is None:
            tick.set(**BOLD)
            continue
        sizes = {kind: line[f"{kind.split()[0]}_gb"] for kind in PARTS}
        beyond = stacked(axes, row, sizes, 1, limit, PARTS) > limit
        held = f"{three_digits(line['peak_gb'])} GB: "
        held += "fits" if line["fits"] else "does not fit"
        margin(axes, row, f"{'▶' if beyond else '   '} {held}", x=1.005)
        says.append(f"{line['model']}, {line['plan']}: {held}, {_listed(sizes)}")
    axes.axvline(gpu, color=BLACK, linewidth=2, linestyle="--", zorder=3)
    words = f"{three_digits(gpu)} GB of a GPU"
    above(axes, gpu, 1, words, xycoords=axes.get_xaxis_transform(), fontsize=SMALL)
    axes.set(xlim=(0, limit), xlabel="GB on one GPU")
    legend(figure, handles(PARTS))
    notes = (f"{table.caption}.", *COUNTED) if getattr(table, "caption", "") else COUNTED
    return finish(figure, (), f"Predicted memory of one GPU. {'; '.join(says)}.", notes)


def _listed(sizes: dict[str, float], unit: str = "") -> str:
    return ", ".join(f"{name} {three_digits(size)}{unit}" for name, size in sizes.items())


# All plans, and one among them

NOTES = (f"{FORMULAS}. GB are 10^9 bytes.",)
SPEED = "tokens_per_second_per_gpu"
LINE = 88  # characters above the axes
LEAST = 5e-4  # of a step: a smaller part is not drawn
COLUMNS = {"tensor": "tensor {}", "pipeline": "pipeline {}", "data": "data {:,}", "ZeRO": "ZeRO-{}"}
COLUMNS |= {"micro-batch": "micro-batch {}", "recompute": "recompute {}"}
# what a plan loses most by against the best: colour and marker
LOSES = {
    "recomputation": (SKY, "o"),
    "bubble": (GREEN, "D"),
    "tensor's collectives": (ORANGE, "^"),
    "gradients and parameters": (VERMILLION, "s"),
    "smaller products, uneven stages": (PURPLE, "v"),
    "launches": (BLACK, "P"),
}
OTHERS = (BLUE, "X")


def named(line: dict) -> str:
    """A plan in words, without what it does not do: an axis of one rank, ZeRO-0."""
    left_out = {"ZeRO": 0, "recompute": "none"}
    given = [name for name in COLUMNS if line[name] != left_out.get(name, 1)]
    return ", ".join(COLUMNS[name].format(line[name]) for name in given)


@styled
def feasible_plans(table, chosen: dict | None = None) -> Figure:
    """Every plan by the memory that it needs and its speed; colour: what it loses most by.

    table: rows of planning.plans_of. chosen: one of them, which is marked. Raises ValueError for
    a table without rows.
    """
    figure, axes = begin("Predicted: which plans fit, and how fast they are", 6.2)
    return finish(figure, (), _scatter(axes, table, chosen), NOTES)


@styled
def chosen_plan(table, chosen: dict) -> Figure:
    """One plan's memory and step, part by part, and below them its place among all plans.

    table: rows of planning.plans_of. chosen: one of them.
    """
    best = max((line[SPEED] for line in table if line["fits"]), default=0.0)
    speed, gpu, total = (chosen[name] for name in (SPEED, "gpu_gb", "seconds_per_step"))
    title = f"{three_digits(speed)} tokens/s of a GPU, MFU {100 * chosen['mfu']:.0f} %"
    share = f", {100 * speed / best:.0f} % of the best" if chosen["fits"] else ""
    title += share or ", but it does not fit"
    figure, axes = begin(title, 8.6, [["memory", "step"], ["all", "all"]], height_ratios=(1, 1.5))
    held = {kind: chosen["gb"][kind.split()[0]] for kind in PARTS}
    spent = {STEP[part][0]: s for part, s in chosen["seconds"].items() if s > LEAST * total}
    axes["memory"].axvline(gpu, color=BLACK, linestyle="--", linewidth=2)
    _bars(axes["memory"], held, PARTS)
    _bars(axes["step"], spent, {words: look for words, *look in STEP.values()})
    axes["memory"].set(xlim=(0, 1.35 * max(gpu, chosen["peak_gb"])))
    axes["memory"].set_xlabel(f"GB of {three_digits(gpu)} (dashed)")
    axes["step"].set(xlim=(0, 1.35 * total), xlabel="seconds of a step")
    says = f"{title}: {named(chosen)}. GB by part: {_listed(held)}. "
    says += f"Step by part: {_listed(spent, ' s')}. {_scatter(axes['all'], table, chosen)}"
    return finish(figure, (), says, (*NOTES, WAITS))


def _bars(axes, sizes: dict[str, float], looks: dict) -> None:
    """A bar for each part, where the one before it ended, and one for all."""
    left, look = 0.0, {"right": 5, "fontsize": SMALL, "bbox": WHITE}
    for row, (part, size) in enumerate(sizes.items()):
        bar(axes, row, size, looks[part], left)
        left += size
        beside(axes, left, row, three_digits(size), **look)
    bar(axes, len(sizes), left, ("white", ""))
    beside(axes, left, len(sizes), three_digits(left), **look, **BOLD)
    rows(axes, [*sizes, "all"], beside=0.5)
    axes.tick_params(labelsize=SMALL)


def _scatter(axes, table, chosen: dict | None) -> str:
    """Draw all plans; returns what they show in words."""
    lines = list(table)
    if not lines:
        raise ValueError("the table has no plans")
    gpu, groups = lines[0]["gpu_gb"], {}
    _memory_axis(axes, [line["peak_gb"] for line in lines], gpu)
    for line in lines:
        groups.setdefault(line["slower_by"] if line["fits"] else "too large", []).append(line)
    too_large = groups.pop("too large", [])
    _points(axes, too_large, "too large", color="white", markeredgecolor=PALE, marker="o")
    for words, own in sorted(groups.items(), key=lambda item: -len(item[1])):
        colour, marker = LOSES.get(words, OTHERS)
        if words:
            _points(axes, own, words, color=colour, marker=marker, markeredgecolor="white")
    fitting = [line for own in groups.values() for line in own]
    plain = f"{len(lines)} plans, {len(fitting)} fit {three_digits(gpu)} GB"
    says = [getattr(table, "caption", "") or plain]
    marks = {}
    if fitting:
        best = min(fitting, key=lambda line: line["seconds_per_step"])
        marks["best"] = best, {"marker": "*", "markersize": 20, "color": YELLOW}
    if chosen:
        marks["chosen"] = chosen, {"marker": "o", "markersize": 18, "color": "none"}
    for words, (line, look) in marks.items():
        _points(axes, [line], words, markeredgecolor=BLACK, zorder=4, **look)
        speed, held = (three_digits(line[name]) for name in (SPEED, "peak_gb"))
        says.append(f"{words}: {named(line)}: {speed} tokens/s, {held} GB")
    if chosen:
        why = chosen["slower_by"] if chosen["fits"] else ""
        slower = f"; slower than the best by: {why}" if why else ""
        says.append(f"chosen is limited by: {chosen['limit']}{slower}")
    axes.set(ylim=(0, 1.08 * max(line[SPEED] for line in lines)), ylabel="tokens/s of a GPU")
    words = "\n".join(line for text in says for line in wrap(text, LINE))
    axes.set_title(words, loc="left", fontsize=SMALL)
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": SMALL}
    axes.legend(title="slower than\nthe best by", title_fontsize=SMALL, alignment="left", **place)
    counts = ", ".join(f"{words} {len(own)}" for words, own in groups.items() if words)
    return f"{'. '.join(says)}. What the others that fit lose most by: {counts or 'none'}."


def _memory_axis(axes, held: list[float], gpu: float) -> None:
    """GB in powers of two times the GPU's, with what is beyond it shaded."""
    left, right = min(*held, gpu / 2) / 1.15, max(*held, 1.5 * gpu) * 1.15
    axes.axvspan(gpu, right, color=PAPER)
    axes.axvline(gpu, color=BLACK, linestyle="--", linewidth=2)
    ticks = [gpu * 2.0**k for k in range(-8, 12) if left < gpu * 2.0**k < right]
    step = len(ticks) // 8 + 1
    ticks = ticks[ticks.index(gpu) % step :: step]
    log_axis(axes.xaxis, ticks, [three_digits(tick) for tick in ticks])
    axes.set(xlim=(left, right), xlabel="GB on the fullest GPU; shaded: more than it has")


def _points(axes, lines: list[dict], words: str, **look) -> None:
    x, y = ([line[name] for line in lines] for name in ("peak_gb", SPEED))
    look = {"linestyle": "", "markersize": 8, "markeredgewidth": 1.2, **look}
    axes.plot(x, y, label=words.replace(", ", ",\n") if lines else "_", **look)


# The best plan at each number of GPUs

ROWS = ("GPUs", "tensor", "pipeline", "data", "tokens/s")
NONE = {"no plan fits the memory": "does not fit", "no plan divides the batch": "batch too small"}
GROWTH = (
    f"{FORMULAS}; the same batch for all. Tokens/s: of a GPU. In red, what sets in: batch, less "
    "than a sample for each GPU; else what the step waits for longer than a tenth of its time. "
    f"{WAITS}",
)


@styled
def what_breaks(table) -> Figure:
    """The shares of a step as GPUs are added, and in red what sets in at which number of them.

    table: rows of planning.grown. Raises ValueError where no number of GPUs has a plan.
    """
    lines = list(table)
    known = [line for line in lines if line["shares"]]
    if not known:
        raise ValueError("no number of GPUs has a plan that fits")
    figure, axes = begin("Predicted: what breaks as GPUs are added", 6.0)
    parts = [part for part in STEP if any(line["shares"][part] > 0.002 for line in known)]
    says = [_column(axes, place, line, parts) for place, line in enumerate(lines)]
    axes.set_xticks(range(len(lines)), ["\n".join(_cells(line)) for line in lines], fontsize=FOOT)
    axes.tick_params(axis="x", length=0, pad=9)
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "linespacing": 1.2}
    names = {"ha": "right", "va": "top", "fontsize": FOOT}
    axes.annotate("\n".join(ROWS), (0, 0), (-8, -9), **place, **names)
    axes.set(ylim=(0, 100), xlim=(-0.6, len(lines) - 0.4), ylabel="% of the step")
    tallest = max(len(line["marks"]) for line in known)  # lines of words above the axes
    title = getattr(table, "caption", "") or " "
    axes.set_title(title, loc="left", fontsize=SMALL, pad=8 + 16 * tallest)
    legend(figure, handles({STEP[part][0]: STEP[part][1:] for part in parts}))
    return finish(figure, (), f"Predicted. {'; '.join(says)}.", GROWTH)


def _cells(line: dict) -> list[str]:
    """What stands below a column."""
    numbers = [line[name] for name in ROWS[:-1]]
    speed = "-" if line[SPEED] is None else three_digits(line[SPEED])
    return [*("-" if number is None else f"{number:,}" for number in numbers), speed]


def _column(axes, place: int, line: dict, parts: list[str]) -> str:
    """One number of GPUs: its step's parts and what sets in above them, or why it has no plan.

    Returns it in words.
    """
    look = {"ha": "center", "fontsize": FOOT}
    marks = f" ({', '.join(line['marks'])})" if line["marks"] else ""
    if not line["shares"]:
        axes.bar(place, 100, 0.8, color="white", edgecolor=GREY, hatch="///")
        (why,) = line["marks"]
        axes.text(place, 50, NONE.get(why, why), rotation=90, va="center", bbox=WHITE, **look)
        return f"{line['GPUs']:,} GPUs{marks}"
    below, says = 0.0, []
    for part in parts:
        words, colour, hatch = STEP[part]
        share = line["shares"][part]
        axes.bar(place, 100 * share, 0.8, bottom=below, color=colour, hatch=hatch, **EDGE)
        below += 100 * share
        says.append(f"{words} {share:.0%}")
    words = "\n".join(line["marks"]).replace("launches", "launch")  # it has one column's room
    axes.text(place, 102, words, va="bottom", color=VERMILLION, **BOLD, **look)
    speed = three_digits(line[SPEED])
    return f"{line['GPUs']:,} GPUs: {speed} tokens/s each{marks}, {', '.join(says)}"
