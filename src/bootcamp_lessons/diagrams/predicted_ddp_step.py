"""A predicted step of DDP: `predicted_ddp_step.step("GPT-2, 124 M")`, and what the cap does.

Everything drawn comes from bootcamp.costs.ddp. Nothing here is measured, and the figure names its
model of the costs.
"""

from matplotlib.figure import Figure

from bootcamp.costs import ddp, model_shapes
from bootcamp.drawing.charts import EDGE, WHITE, handles, margin, rows
from bootcamp.drawing.palette import BLACK, BLUE, INK, LIGHT, ORANGE, PALE, SKY, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.units import time

MODELS = {  # name: (model, size)
    "GPT-2, 124 M": (model_shapes.GPT2, "small"),
    "GPT-2, 355 M": (model_shapes.GPT2, "medium"),
    "GPT-2, 774 M": (model_shapes.GPT2, "large"),
    "GPT-2, 1558 M": (model_shapes.GPT2, "xl"),
    "GPT tiny": ("gpt", "tiny"),
    "MLP tiny": ("mlp", "tiny"),
    "MLP small": ("mlp", "small"),
    "StripedLSTM small": ("striped-lstm", "small"),
    "ResNet-50": ("resnet50", "medium"),
}
ONE = 10_000  # MiB: more than any of these models
SIZES = (0.05, 0.2, 1, 2, 5, 10, None, 25, 50, 100, 200, ONE)  # MiB; None: DDP's own rule
CAPS = {{None: "default", ONE: "all"}.get(cap, f"{cap}"): cap for cap in SIZES}
DEFAULT = "default"
LOOKS = {
    "forward": (LIGHT.blue, ""),
    "backward, layer by layer": (SKY, ""),
    "all-reduce beside the backward": (ORANGE, ""),
    "all-reduce that is waited for": (VERMILLION, "//"),
}
MODEL_OF_COSTS = (
    "Predicted by a model, nothing here is measured. An all-reduce costs what the alpha-beta model "
    "(Hockney, 1994) says of a ring: 2(N-1) messages of bytes/N; one bucket after another.",
    "The backward takes twice the forward, layers share the time by their operations. "
    "Communicating takes nothing from it. Gradients of 4 bytes. Without the optimizer. Buckets by "
    "DDP's rule. Default: the first bucket has 1 MiB, the others 25.",
)
INCHES = 7.4  # how wide the axes are, about
FEW = 14  # buckets whose way from the backward to the link is drawn
MANY = 60  # buckets from which on their frames would be all that is seen


@styled
def step(
    model: str = "GPT-2, 124 M",
    bucket: str = DEFAULT,
    ranks: int = 8,
    bytes_per_second: float = 12.5e9,
    latency: float = 20e-6,
    compute_seconds: float = 0.2,
) -> Figure:
    """When a rank computes and when each bucket travels, and the step's end by the bucket's size.

    model: of MODELS. bucket: of CAPS. The rest is as theory.ddp.step has it.
    """
    layers = model_shapes.layers(*MODELS[model])
    costs = (ranks, bytes_per_second, latency, compute_seconds)
    now = ddp.step(layers, CAPS[bucket], *costs)
    heights = {"height_ratios": (3.2, 2.2)}
    title = f"Predicted: {model} on {ranks} ranks, a step of {time(now.ended)}"
    figure, (above, below) = begin(title, 6.9, nrows=2, gridspec_kw=heights)
    unit = (1.0, "seconds") if now.ended >= 10 else (1e3, "milliseconds")
    _lanes(above, now, *unit)
    by_cap = {name: ddp.step(layers, cap, *costs) for name, cap in CAPS.items()}
    _by_cap(below, by_cap, bucket, *unit)
    legend(figure, handles(LOOKS))
    return finish(figure, (), _says(model, bucket, now, by_cap, costs), _notes(costs))


def _lanes(axes, now: ddp.Step, scale: float, unit: str) -> None:
    """What the rank computes above, what its link carries below, and the end of both."""
    longest, end = scale * now.ended, now.computed
    early = [ddp.Span(s.name, s.began, min(s.ended, end)) for s in now.reduces if s.began < end]
    late = [ddp.Span(s.name, max(s.began, end), s.ended) for s in now.reduces if s.ended > end]
    lanes = ((now.forward, 0), (now.backward, 0), (early, 1), (late, 1))
    for (spans, lane), (colour, hatch) in zip(lanes, LOOKS.values(), strict=True):
        boxes = [(scale * span.began, scale * span.seconds) for span in spans]
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white" if hatch else INK}
        axes.broken_barh(boxes, (lane - 0.3, 0.6), linewidth=0.5, **look)
    frames = [(scale * span.began, scale * span.seconds) for span in now.reduces]
    line = 0.8 if len(frames) <= MANY else 0.3
    axes.broken_barh(frames, (0.7, 0.6), **EDGE | {"facecolor": "none", "linewidth": line})
    for lane, spans in enumerate(((*now.forward, *now.backward), now.reduces)):
        for span in spans:  # a bucket that is early and late has one frame and one name
            _name(axes, span, lane, scale, longest)
    if len(now.reduces) <= FEW:
        for full, span in zip(now.ready, now.reduces, strict=True):
            way = ([scale * full, scale * span.began], [0.31, 0.69])
            axes.plot(*way, color=INK, linewidth=1, marker="o", markersize=3)
    axes.axvline(longest, color=BLACK, linewidth=2)
    rows(axes, ("computes", "sends and\nreceives"), beside=0.4)
    axes.set(xlim=(0, 1.01 * longest), xlabel=f"{unit} since the step began")
    axes.grid(axis="x")
    margin(axes, -0.02, time(now.computed))
    margin(axes, 0.48, f"waits {time(now.ended - now.computed)}")
    margin(axes, 0.98, time(now.reducing))


def _name(axes, span, lane: int, scale: float, longest: float) -> None:
    """The name of a box, or its number alone, where there is room for it."""
    inches = scale * span.seconds / longest * INCHES
    for words in (span.name, span.name.split()[-1] if span.name[-1].isdigit() else ""):
        if words and inches > 0.094 * len(words) + 0.05:
            look = {"ha": "center", "va": "center", "fontsize": 11}
            behind = WHITE if lane == 1 else None
            axes.text(scale * (span.began + span.ended) / 2, lane, words, bbox=behind, **look)
            return


def _by_cap(axes, by_cap: dict, chosen: str, scale: float, unit: str) -> None:
    """The step's end for each cap, the chosen one marked, between no waiting and no overlap."""
    ends = [scale * step.ended for step in by_cap.values()]
    low, high = scale * by_cap[chosen].computed, max(ends)
    axes.plot(range(len(ends)), ends, "o-", color=BLUE)
    place = list(by_cap).index(chosen)
    look = {"markersize": 14, "color": VERMILLION, "zorder": 4, "clip_on": False}
    axes.plot(place, ends[place], "D", **look)
    axes.axhline(low, color=PALE, linestyle="--", linewidth=2)
    room = max(high - low, 0.1 * low)
    below = {"ha": "right", "va": "top", "fontsize": SMALL}
    axes.text(len(ends) - 0.6, low - 0.04 * room, "computing alone", **below)
    axes.set_ylim(low - 0.35 * room, high + 0.2 * room)
    words = [f"{name}\n{len(step.sizes)}" for name, step in by_cap.items()]
    axes.set_xticks(range(len(words)), words, fontsize=11)
    axes.set_xlabel("bucket cap in MiB, and below it how many buckets that makes")
    axes.set_ylabel(f"step ({unit.replace('milliseconds', 'ms').replace('seconds', 's')})")
    axes.grid(axis="y")


def _notes(costs: tuple) -> tuple[str, ...]:
    _, bytes_per_second, latency, compute_seconds = costs
    model, work = MODEL_OF_COSTS
    return (
        f"{model} A message takes {1e6 * latency:g} µs and its bytes at {bytes_per_second / 1e9:g} "
        "GB/s.",
        f"Given: {time(compute_seconds)} of computing. {work}",
    )


def _says(model: str, bucket: str, now, by_cap: dict, costs: tuple) -> str:
    """The picture in words."""
    ends = ", ".join(
        f"{name} ({len(step.sizes)} buckets) {time(step.ended)}" for name, step in by_cap.items()
    )
    sizes = [size / ddp.MIB for size in now.sizes]
    filled = f"{len(sizes)} buckets of {min(sizes):.3g} to {max(sizes):.3g} MiB"
    return (
        f"Predicted step of {model} on {costs[0]} ranks with bucket cap {bucket}: {filled}. "
        f"Forward and backward end at {time(now.computed)}, the first all-reduce begins at "
        f"{time(now.reduces[0].began)}, the last ends at {time(now.reduces[-1].ended)}. All "
        f"all-reduces take {time(now.reducing)}, {time(now.hidden)} of it beside the backward. "
        f"The step ends at {time(now.ended)}. By bucket cap in MiB: {ends}. "
        + " ".join(_notes(costs))
    )
