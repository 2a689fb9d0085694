"""All plans of a model on a cluster, and one among them: `planning.plans_of`'s tables."""

from textwrap import wrap

from matplotlib.figure import Figure

from bootcamp.drawing.charts import BOLD, WHITE, bar, beside, log_axis, rows
from bootcamp.drawing.palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PAPER,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
)
from bootcamp.drawing.plots.plan_memory import PARTS
from bootcamp.drawing.style import SMALL, begin, finish, styled
from bootcamp.units import three_digits

NOTES = ("By the planner's formulas, nothing here is measured. GB are 10^9 bytes.",)
WAITS = "Tensor, context, experts, data: what the step waits for their collectives."
LINE = 88  # characters above the axes
LEAST = 5e-4  # of a step: a smaller part is not drawn
COLUMNS = {"tensor": "tensor {}", "pipeline": "pipeline {}", "data": "data {:,}", "ZeRO": "ZeRO-{}"}
COLUMNS |= {"context": "context {}", "expert": "expert {}", "micro-batch": "micro-batch {}"}
COLUMNS |= {"recompute": "recompute {}"}
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


def named(line: dict) -> str:
    """A plan in words, without what it does not do: an axis of one rank, ZeRO-0."""
    left_out = {"ZeRO": 0, "recompute": "none"}
    given = {name: line[name] for name in COLUMNS if line.get(name, 1) != left_out.get(name, 1)}
    return ", ".join(COLUMNS[name].format(value) for name, value in given.items())


@styled
def feasible_plans(table, chosen: dict | None = None) -> Figure:
    """Every plan by the memory that it needs and its speed; colour: what it loses most by.

    table: rows of planning.plans_of. chosen: one of them, which is marked. Raises ValueError for
    a table without rows.
    """
    figure, axes = begin("Predicted: which plans fit, and how fast they are", 6.2)
    said = _scatter(axes, table, chosen)
    return finish(figure, (), said, NOTES)


@styled
def chosen_plan(table, chosen: dict) -> Figure:
    """One plan's memory and step, part by part, and below them its place among all plans.

    table: rows of planning.plans_of. chosen: one of them.
    """
    best = max((line["tokens_per_second_per_gpu"] for line in table if line["fits"]), default=0.0)
    speed, fits = chosen["tokens_per_second_per_gpu"], chosen["fits"]
    title = f"{three_digits(speed)} tokens/s of a GPU, MFU {100 * chosen['mfu']:.0f} %"
    title += f", {100 * speed / best:.0f} % of the best" if fits else ", but it does not fit"
    figure, axes = begin(title, 8.6, [["memory", "step"], ["all", "all"]], height_ratios=(1, 1.5))
    memory = {kind: chosen["gb"][kind.split()[0]] for kind in PARTS}
    looks = {kind: (kind, *PARTS[kind]) for kind in PARTS}
    gpu = chosen["gpu_gb"]
    axes["memory"].axvline(gpu, color=BLACK, linestyle="--", linewidth=2)
    _parts(axes["memory"], memory, looks)
    axes["memory"].set(xlim=(0, 1.35 * max(gpu, chosen["peak_gb"])))
    axes["memory"].set_xlabel(f"GB of {three_digits(gpu)} (dashed)")
    total = chosen["seconds_per_step"]
    seconds = {part: s for part, s in chosen["seconds"].items() if s > LEAST * total}
    _parts(axes["step"], seconds, STEP)
    axes["step"].set(xlim=(0, 1.35 * total), xlabel="seconds of a step")
    said = _scatter(axes["all"], table, chosen)
    held = ", ".join(f"{kind} {three_digits(gb)}" for kind, gb in memory.items())
    spent = ", ".join(f"{STEP[part][0]} {three_digits(s)} s" for part, s in seconds.items())
    says = f"{title}: {named(chosen)}. GB by part: {held}. Step by part: {spent}. {said}"
    return finish(figure, (), says, (*NOTES, WAITS))


def _parts(axes, sizes: dict, looks: dict) -> None:
    """A bar for each part, where the one before it ended, and one for all."""
    left, look = 0.0, {"right": 5, "fontsize": SMALL, "bbox": WHITE}
    for row, (part, size) in enumerate(sizes.items()):
        bar(axes, row, size, looks[part][1:], left)
        left += size
        beside(axes, left, row, three_digits(size), **look)
    bar(axes, len(sizes), left, ("white", ""))
    beside(axes, left, len(sizes), three_digits(left), **look, **BOLD)
    rows(axes, [*(looks[part][0] for part in sizes), "all"], beside=0.5)
    axes.tick_params(labelsize=SMALL)


def _scatter(axes, table, chosen: dict | None) -> str:
    """Draw all plans; returns what they show in words."""
    lines = list(table)
    if not lines:
        raise ValueError("the table has no plans")
    fitting = [line for line in lines if line["fits"]]
    gpu = lines[0]["gpu_gb"]
    groups = {}
    for line in fitting:
        groups.setdefault(line["slower_by"], []).append(line)
    held = [line["peak_gb"] for line in lines]
    left, right = min(*held, gpu / 2) / 1.15, max(*held, 1.5 * gpu) * 1.15
    axes.axvspan(gpu, right, color=PAPER)
    axes.axvline(gpu, color=BLACK, linestyle="--", linewidth=2)
    others = [line for line in lines if not line["fits"]]
    _points(axes, others, "too large", color="white", markeredgecolor=PALE, marker="o")
    for words, own in sorted(groups.items(), key=lambda item: -len(item[1])):
        colour, marker = LOSES.get(words, OTHERS)
        if words:
            _points(axes, own, words, color=colour, marker=marker, markeredgecolor="white")
    plain = f"{len(lines)} plans, {len(fitting)} fit {three_digits(gpu)} GB"
    told = [getattr(table, "caption", "") or plain]
    marks = (
        [("best", min(fitting, key=lambda x: x["seconds_per_step"]), "*", 20)] if fitting else []
    )
    marks += [("chosen", chosen, "o", 18)] if chosen else []
    for words, line, marker, size in marks:
        look = {"color": YELLOW if marker == "*" else "none", "markeredgecolor": BLACK}
        _points(axes, [line], words, marker=marker, markersize=size, zorder=4, **look)
        told.append(f"{words}: {_told(line)}")
    if chosen:
        why = chosen["slower_by"] if chosen["fits"] else ""
        slower = f"; slower than the best by: {why}" if why else ""
        told.append(f"chosen is limited by: {chosen['limit']}{slower}")
    ticks = [gpu * 2.0**k for k in range(-8, 12) if left < gpu * 2.0**k < right]
    step = len(ticks) // 8 + 1
    at = ticks.index(gpu) % step
    log_axis(axes.xaxis, ticks[at::step], [three_digits(tick) for tick in ticks[at::step]])
    top = 1.08 * max(line["tokens_per_second_per_gpu"] for line in lines)
    axes.set(xlim=(left, right), ylim=(0, top), ylabel="tokens/s of a GPU")
    axes.set_xlabel("GB on the fullest GPU; shaded: more than it has")
    words = "\n".join(line for text in told for line in wrap(text, LINE))
    axes.set_title(words, loc="left", fontsize=SMALL)
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": SMALL}
    axes.legend(title="slower than\nthe best by", title_fontsize=SMALL, alignment="left", **place)
    counts = ", ".join(f"{words} {len(own)}" for words, own in groups.items() if words)
    return f"{'. '.join(told)}. What the others that fit lose most by: {counts or 'none'}."


def _points(axes, lines: list[dict], words: str, **look) -> None:
    x, y = ([line[name] for line in lines] for name in ("peak_gb", "tokens_per_second_per_gpu"))
    look = {"linestyle": "", "markersize": 8, "markeredgewidth": 1.2, **look}
    axes.plot(x, y, label=words.replace(", ", ",\n") if lines else "_", **look)


def _told(line: dict) -> str:
    speed = three_digits(line["tokens_per_second_per_gpu"])
    return f"{named(line)}: {speed} tokens/s, {three_digits(line['peak_gb'])} GB"
