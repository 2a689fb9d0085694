"""Lessons 10 and 14: a model's memory, its plans, what limits them at each number of GPUs, steps
part by part, errors of predictions. Most draw a table of forecasts, which they name.
"""

import textwrap
from collections import Counter
from statistics import median

from matplotlib.figure import Figure

from bootcamp.costs.planner import WORDS
from bootcamp.drawing import charts, palette
from bootcamp.drawing.style import FOOT, SMALL, begin, finish, legend, styled
from bootcamp.units import number, three_digits
from bootcamp_lessons import plan_contest

FORMULAS = "By the planner's formulas, nothing here is measured"
WAITS = "Tensor, context, experts, data: what the step waits for their collectives."
# what a GPU holds: the first word of each is a column, *_gb
PARTS = {**palette.KINDS, "buffers": (palette.PURPLE, "xx")}
STEP = {  # part of a step: what it is called, its colour and hatch
    "compute": ("computes", (palette.SKY, "")),
    "host": ("launches", (palette.BLACK, "")),
    "tensor": ("tensor", (palette.ORANGE, "//")),
    "context": ("context", (palette.YELLOW, "//")),
    "expert": ("experts", (palette.GREEN, "//")),
    "data": ("data, ZeRO", (palette.VERMILLION, "\\\\")),
    "pipeline": ("hand-over", (palette.PURPLE, "xx")),
    "bubble": ("bubble", (palette.GREY, "..")),
    "optimizer": ("optimizer", (palette.BLUE, "")),
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
    """Stack each row of forecasts.memory_by_part; a bar too long for the axis ends in an arrow."""
    gpu, largest = table[0]["gpu_gb"], max(table.column("peak_gb"))
    limit = 1.04 * max(gpu, min(largest, SEEN * gpu))
    labels, says = [], []
    figure, axes = begin("Predicted: what one GPU holds, part by part", 2.8)
    for line in table:
        if line["model"] not in labels:
            labels.append(line["model"])
        sizes = {kind: line[f"{kind.split()[0]}_gb"] for kind in PARTS}
        row = len(labels)
        arrow = "▶" if charts.stack_bars(axes, row, sizes, 1, limit, PARTS) > limit else "   "
        fits = "fits" if line["fits"] else "does not fit"
        held = f"{three_digits(line['peak_gb'])} GB: {fits}"
        charts.margin(axes, row, f"{arrow} {held}", x=1.005)
        labels.append(line["plan"])
        says.append(f"{line['model']}, {line['plan']}: {held}, {_list_sizes(sizes)}")
    figure.set_figheight(max(4.0, 2.8 + 0.26 * len(labels)))
    charts.rows(axes, labels, beside=0.5)
    for tick in axes.get_yticklabels():
        tick.set(fontsize=SMALL)
        if tick.get_text() in table.column("model"):
            tick.set(**charts.BOLD)
    axes.axvline(gpu, color=palette.BLACK, linewidth=2, linestyle="--", zorder=3)
    words = f"{three_digits(gpu)} GB of a GPU"
    charts.above(axes, gpu, 1, words, xycoords=axes.get_xaxis_transform(), fontsize=SMALL)
    axes.set(xlim=(0, limit), xlabel="GB on one GPU")
    legend(figure, charts.handles(PARTS))
    says = f"Predicted memory of one GPU. {'; '.join(says)}."
    return finish(figure, (), says, (f"{table.caption}.", *COUNTED))


def _list_sizes(sizes: dict[str, float], unit: str = "") -> str:
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
    "recomputation": (palette.SKY, "o"),
    "bubble": (palette.GREEN, "D"),
    "tensor's collectives": (palette.ORANGE, "^"),
    "gradients and parameters": (palette.VERMILLION, "s"),
    "smaller products, uneven stages": (palette.PURPLE, "v"),
    "launches": (palette.BLACK, "P"),
}
OTHERS = (palette.BLUE, "X")


def describe_plan(line: dict) -> str:
    """Describe a plan in words, without what it does not do: an axis of one rank, ZeRO-0."""
    left_out = {"ZeRO": 0, "recompute": "none"}
    given = [name for name in COLUMNS if line[name] != left_out.get(name, 1)]
    return ", ".join(COLUMNS[name].format(line[name]) for name in given)


@styled
def feasible_plans(table) -> Figure:
    """Draw forecasts.list_plans by memory and speed; colour: what a plan loses most by."""
    figure, axes = begin("Predicted: which plans fit, and how fast they are", 6.2)
    return finish(figure, (), _draw_plans(axes, table), NOTES)


@styled
def chosen_plan(table, chosen: dict) -> Figure:
    """Draw one row of forecasts.list_plans part by part, and below it its place among all."""
    best = max((line[SPEED] for line in table if line["fits"]), default=0.0)
    speed, gpu, total = (chosen[name] for name in (SPEED, "gpu_gb", "seconds_per_step"))
    share = f"{100 * speed / best:.0f} % of the best" if chosen["fits"] else "but it does not fit"
    title = f"{three_digits(speed)} tokens/s of a GPU, MFU {100 * chosen['mfu']:.0f} %, {share}"
    figure, axes = begin(title, 8.6, [["memory", "step"], ["all", "all"]], height_ratios=(1, 1.5))
    held = {kind: chosen["gb"][kind.split()[0]] for kind in PARTS}
    spent = {STEP[part][0]: s for part, s in chosen["seconds"].items() if s > LEAST * total}
    axes["memory"].axvline(gpu, color=palette.BLACK, linestyle="--", linewidth=2)
    end, unit = max(gpu, chosen["peak_gb"]), f"GB of {three_digits(gpu)} (dashed)"
    _draw_bars(axes["memory"], held, PARTS, end, unit)
    _draw_bars(axes["step"], spent, dict(STEP.values()), total, "seconds of a step")
    says = f"{title}: {describe_plan(chosen)}. GB by part: {_list_sizes(held)}. "
    says += f"Step by part: {_list_sizes(spent, ' s')}. {_draw_plans(axes['all'], table, chosen)}"
    return finish(figure, (), says, (*NOTES, WAITS))


def _draw_bars(axes, sizes: dict[str, float], looks: dict, end: float, xlabel: str) -> None:
    """Draw a bar for each part, where the one before it ended, and one for all."""
    left, look = 0.0, {"right": 5, "fontsize": SMALL, "bbox": charts.WHITE}
    for row, (part, size) in enumerate(sizes.items()):
        charts.bar(axes, row, size, looks[part], left)
        left += size
        charts.beside(axes, left, row, three_digits(size), **look)
    charts.bar(axes, len(sizes), left, ("white", ""))
    charts.beside(axes, left, len(sizes), three_digits(left), **look, **charts.BOLD)
    charts.rows(axes, [*sizes, "all"], beside=0.5)
    axes.set(xlim=(0, 1.35 * end), xlabel=xlabel)
    axes.tick_params(labelsize=SMALL)


def _draw_plans(axes, table, chosen: dict | None = None) -> str:
    """Draw all plans; return what they show in words."""
    if not table:
        raise ValueError("the table has no plans")
    gpu, held = table[0]["gpu_gb"], table.column("peak_gb")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: three_digits(size))
    xlabel = f"GB on the fullest GPU; shaded: more than its {three_digits(gpu)}"
    axes.set(xlabel=xlabel, ylabel="tokens/s of a GPU")
    axes.set(xlim=(min(*held, gpu / 2) / 1.15, max(*held, 1.5 * gpu) * 1.15))
    axes.set(ylim=(0, 1.08 * max(table.column(SPEED))))
    axes.axvspan(gpu, axes.get_xlim()[1], color=palette.PAPER)
    axes.axvline(gpu, color=palette.BLACK, linestyle="--", linewidth=2)
    fitting = [line for line in table if line["fits"]]
    too_large = [line for line in table if not line["fits"]]
    _draw_points(axes, too_large, "too large", "white", "o", markeredgecolor=palette.PALE)
    reasons = Counter(line["slower_by"] for line in fitting if line["slower_by"])
    for words, _ in reasons.most_common():
        own = [line for line in fitting if line["slower_by"] == words]
        _draw_points(axes, own, words, *LOSES.get(words, OTHERS), markeredgecolor="white")
    marks = [("best", line, palette.YELLOW, "*", 20) for line in fitting[:1]]
    marks += [("chosen", chosen, "none", "o", 18)] if chosen else []
    says = [table.caption]
    for words, line, colour, marker, size in marks:
        look = {"markersize": size, "markeredgecolor": palette.BLACK, "zorder": 4}
        _draw_points(axes, [line], words, colour, marker, **look)
        speed, memory = (three_digits(line[name]) for name in (SPEED, "peak_gb"))
        says.append(f"{words}: {describe_plan(line)}: {speed} tokens/s, {memory} GB")
    if chosen:
        slower = chosen["fits"] and chosen["slower_by"]
        why = f"; slower than the best by: {slower}" if slower else ""
        says.append(f"chosen is limited by: {chosen['limit']}{why}")
    words = "\n".join(line for text in says for line in textwrap.wrap(text, LINE))
    axes.set_title(words, loc="left", fontsize=SMALL)
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": SMALL}
    axes.legend(title="slower than\nthe best by", title_fontsize=SMALL, alignment="left", **place)
    counts = ", ".join(f"{words} {count}" for words, count in reasons.items())
    return f"{'. '.join(says)}. What the others that fit lose most by: {counts or 'none'}."


def _draw_points(axes, lines: list[dict], words: str, colour: str, marker: str, **look) -> None:
    x, y = ([line[name] for line in lines] for name in ("peak_gb", SPEED))
    look = {"color": colour, "marker": marker, "markersize": 8, "markeredgewidth": 1.2, **look}
    axes.plot(x, y, linestyle="", label=words.replace(", ", ",\n") if lines else "_", **look)


# The best plan at each number of GPUs

ROWS = ("GPUs", "tensor", "context", "pipeline", "data", "tokens/s")
NONE = {"no plan fits the memory": "does not fit", "no plan divides the batch": "batch too small"}
GROWTH = (
    f"{FORMULAS}; the same batch for all. Tokens/s: of a GPU. In red, what sets in: batch, less "
    "than a sample for each GPU; else what the step waits for longer than a tenth of its time. "
    f"{WAITS}",
)


@styled
def what_breaks(table) -> Figure:
    """Draw the shares of a step in forecasts.grow, and in red what sets in at which number."""
    known = [line for line in table if line["shares"]]
    if not known:
        raise ValueError("no number of GPUs has a plan that fits")
    figure, axes = begin("Predicted: what breaks as GPUs are added", 6.0)
    parts = [part for part in STEP if any(line["shares"][part] > 0.002 for line in known)]
    says, columns = [], []
    for place, line in enumerate(table):
        marks = f" ({', '.join(line['marks'])})" if line["marks"] else ""
        shown = ""
        if line["shares"]:
            shown = f": {_draw_step(axes, place, line, parts)}"
        else:
            axes.bar(place, 100, 0.8, color="white", edgecolor=palette.GREY, hatch="///")
            look = {"ha": "center", "va": "center", "fontsize": FOOT, "bbox": charts.WHITE}
            axes.text(place, 50, NONE[line["marks"][0]], rotation=90, **look)
        says.append(f"{line['GPUs']:,} GPUs{marks}{shown}")
        speed = line[SPEED] and round(line[SPEED])
        numbers = [*(line[name] for name in ROWS[:-1]), speed]
        columns.append("\n".join(map(number, numbers)))
    axes.set_xticks(range(len(columns)), columns, fontsize=FOOT)
    axes.tick_params(axis="x", length=0, pad=9)
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "linespacing": 1.2}
    names = {"ha": "right", "va": "top", "fontsize": FOOT}
    axes.annotate("\n".join(ROWS), (0, 0), (-8, -9), **place, **names)
    axes.set(ylim=(0, 100), xlim=(-0.6, len(columns) - 0.4), ylabel="% of the step")
    tallest = max(len(line["marks"]) for line in known)  # lines of words above the axes
    axes.set_title(table.caption, loc="left", fontsize=SMALL, pad=8 + 16 * tallest)
    legend(figure, charts.handles(dict(STEP[part] for part in parts)))
    return finish(figure, (), f"Predicted. {'; '.join(says)}.", GROWTH)


def _draw_step(axes, place: int, line: dict, parts: list[str]) -> str:
    """Draw the parts of the step at a number of GPUs, and what sets in; return them in words."""
    below, says = 0.0, [f"{number(round(line[SPEED]))} tokens/s each"]
    for part in parts:
        words, (colour, hatch) = STEP[part]
        share = line["shares"][part]
        axes.bar(place, 100 * share, 0.8, bottom=below, color=colour, hatch=hatch, **charts.EDGE)
        below += 100 * share
        says.append(f"{words} {max(share, 0):.0%}")
    words = "\n".join(line["marks"]).replace("launches", "launch")  # it has one column's room
    look = {"ha": "center", "va": "bottom", "fontsize": FOOT, "color": palette.VERMILLION}
    axes.text(place, 102, words, **look, **charts.BOLD)
    return ", ".join(says)


@styled
def planned_and_published(growth, runs) -> Figure:
    """Draw the MFU of forecasts.grow's plans, and of Llama 3's three runs beside it."""
    figure, axes = begin("Predicted and published: 405 billion parameters on more GPUs", 5.0)
    known, runs = [n for n in growth if n["mfu"]], [n for n in runs if n["run"] == "Llama 3"]
    counts, planned = [n["GPUs"] for n in known], [100 * n["mfu"] for n in known]
    axes.plot(counts, planned, "o-", color=palette.BLUE, label="fastest plan that fits, predicted")
    look = {"color": palette.VERMILLION, "markersize": 13, "linestyle": "", "zorder": 4}
    places = [n["GPUs"] * (1.3 if n["tokens of a sample"] > 8192 else 1) for n in runs]
    published, predicted = (
        [n["published MFU %"] for n in runs],
        [n["predicted MFU %"] for n in runs],
    )
    axes.plot(places, published, marker="*", label="Llama 3, published", **look)
    axes.plot(places, predicted, marker="s", fillstyle="none", label="its mesh, predicted", **look)
    charts.beside(axes, places[-1], published[-1], "131,072 tokens\na sample", fontsize=SMALL)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{gpus:,}" for gpus in counts], fontsize=SMALL)
    axes.set(ylim=(0, 60), xlim=(counts[0] / 1.4, 4 * counts[-1]))
    axes.set(xlabel="GPUs, the same tokens a step for all", ylabel="MFU, %")
    axes.legend(loc="lower left", fontsize=SMALL)
    says = [f"{gpus:,} GPUs {mfu:.0f} %" for gpus, mfu in zip(counts, planned, strict=True)]
    pairs = zip(published, predicted, strict=True)
    says += [f"Llama 3 published {one:.0f}, predicted {other:.0f} %" for one, other in pairs]
    note = "Published: arXiv:2407.21783, table 4. Nothing was fitted to these runs."
    return finish(figure, (), f"Predicted MFU: {'; '.join(says)}.", (note,))


# How wrong predictions are

GOOD = 5  # % of error: what the shaded band shows
NAMED = 3  # of the worst


@styled
def predicted_and_published(table) -> Figure:
    """Draw the errors of forecasts.published_beside_predicted by source; the worst are named."""
    groups = {}
    for line in table:
        groups.setdefault(line["published by"], []).append(line["error %"])
    order = sorted(groups, key=lambda name: -len(groups[name]))
    figure, axes = begin("How wrong the planner is on published runs", 2.6 + 0.42 * len(order))
    axes.axvspan(-GOOD, GOOD, color=palette.LIGHT.green)
    axes.axvline(0, color=palette.BLACK, linewidth=1.5)
    says = []
    for row, name in enumerate(order):
        errors, sizes = groups[name], [abs(error) for error in groups[name]]
        axes.plot(errors, [row] * len(errors), "o", color=palette.BLUE, alpha=0.6, markersize=8)
        words = f"{len(errors)} runs: median {median(sizes):.1f} %, worst {max(sizes):.0f} %"
        charts.margin(axes, row, words, x=1.015)
        says.append(f"{name}: {words}")
    worst = table[:NAMED]
    ring = {"color": palette.VERMILLION, "markersize": 15, "markeredgewidth": 2}
    for line in worst:
        place = line["error %"], order.index(line["published by"])
        axes.plot(*place, "o", fillstyle="none", **ring)
    most = 1.1 * max(GOOD, abs(worst[0]["error %"]))
    charts.rows(axes, order)
    axes.xaxis.get_major_locator().set_params(nbins=4)
    axes.tick_params(axis="y", labelsize=SMALL)
    axes.set(
        xlim=(-most, most), xlabel="error of the prediction (%): left too fast, right too slow"
    )
    named = "; ".join(f"{line['run']} {line['error %']:+.0f} %" for line in worst)
    note = (
        "Seconds of a step, each predicted by constants that were fitted without its run. Shaded: "
        f"within {GOOD} %. Circled, the worst: {named}."
    )
    return finish(figure, (), f"{len(table)} published runs. {'; '.join(says)}.", (note,))


# The plans of a contest

LOOKS = {
    "compute": (palette.BLUE, ""),
    plan_contest.AGAIN: (palette.GREY, "\\\\"),
    "tensor and context": (palette.GREEN, ".."),
    "gradients and parameters": (palette.ORANGE, "//"),
    "pipeline": (palette.PURPLE, "xx"),
    "the rest": (palette.YELLOW, ""),
}
GROUPS = {
    WORDS["tensor"]: "tensor and context",
    WORDS["context"]: "tensor and context",
    WORDS["data"]: "gradients and parameters",
    WORDS["pipeline"]: "pipeline",
    WORDS["bubble"]: "pipeline",
}
MOST_BARS = 10
CUT_AT = 3.0  # times the fastest


def group_parts(parts: dict[str, float]) -> dict[str, float]:
    """Return {name in LOOKS: seconds}."""
    found = dict.fromkeys(LOOKS, 0.0)
    for name, seconds in parts.items():
        found[name if name in LOOKS else GROUPS.get(name, "the rest")] += seconds
    return found


@styled
def steps(task: str, plans: dict[str, dict] | None = None) -> Figure:
    """Draw the plans {name: knobs} that fit a task, else its board's; ValueError if none does."""
    given = {
        name: plan_contest.judge(knobs, plan_contest.TASKS[task])
        for name, knobs in (plans or {}).items()
    }
    everything = list(given.items()) or plan_contest.list_entries(task)
    entered = [(name, verdict) for name, verdict in everything if verdict.fits][:MOST_BARS]
    if not entered:
        raise ValueError(f"no plan that fits the task {task}: plan_contest.enter takes one")
    figure, axes = begin(f"Predicted: a step of the task {task}", 2.9 + 0.75 * len(entered))
    says = []
    fastest = entered[0][1].seconds / entered[0][1].slower
    limit = CUT_AT * fastest
    for row, (name, verdict) in enumerate(entered):
        left = charts.stack_bars(axes, row, group_parts(verdict.parts), 1, limit, LOOKS)
        if left > limit:
            charts.margin(axes, row, "▶", x=0.99, ha="right", zorder=4, bbox=charts.WHITE)
        charts.margin(axes, row, f"{left:.2f} s", x=1.015, **charts.BOLD)
        charts.marker_line(axes, row, fastest)
        says.append(f"{name}, {verdict.given}: {left:.2f} s, limited by {verdict.limit}")
    charts.rows(axes, [_wrap_label(name, one.given) for name, one in entered])
    axes.set(xlim=(0, limit), xlabel="seconds of a step")
    legend(figure, charts.handles(LOOKS))
    notes = (
        "Predicted by the planner, not measured. Black line: the fastest plan that it finds.",
        "The rest: launches from the host, experts, the optimizer. ▶: the bar goes on.",
    )
    if left_out := len(everything) - len(entered):
        notes += (f"Not drawn, as they do not fit, are impossible, or too many: {left_out}.",)
    return finish(figure, (), f"{'; '.join(says)}.", notes)


def _wrap_label(name: str, given: str) -> str:
    """Wrap a plan's text without parting a knob from its value."""
    together = given.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return textwrap.fill(f"{name}: {together}", 26)
