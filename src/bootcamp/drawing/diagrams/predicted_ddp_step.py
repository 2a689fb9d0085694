"""A predicted step of DDP: `plots.show(ddp_timeline.step("gpt-2 small"))`, and what the cap does.

Everything drawn comes from bootcamp.theory.ddp. Nothing here is measured, and the figure says so.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.palette import BLACK, BLUE, INK, ORANGE, PALE, SKY, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.theory import ddp, model_shapes

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
CAPS = {  # what the slider calls it: bucket_cap_mb
    "0.05": 0.05,
    "0.2": 0.2,
    "1": 1,
    "2": 2,
    "5": 5,
    "10": 10,
    "default": None,
    "25": 25,
    "50": 50,
    "100": 100,
    "200": 200,
    "all": ONE,
}
DEFAULT = "default"
FORWARD, BACKWARD = "#D6ECFA", SKY
LOOKS = {
    "forward": (FORWARD, ""),
    "backward, layer by layer": (BACKWARD, ""),
    "all-reduce beside the backward": (ORANGE, ""),
    "all-reduce that is waited for": (VERMILLION, "//"),
}
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

    model: of MODELS. bucket: of CAPS. The rest is as ddp_theory.step has it.
    """
    layers = model_shapes.layers(*MODELS[model])
    costs = (ranks, bytes_per_second, latency, compute_seconds)
    now = ddp.step(layers, CAPS[bucket], *costs)
    figure, (above, below) = begin(
        f"Predicted: {model} on {ranks} ranks, a step of {_time(now.ended)}",
        6.9,
        nrows=2,
        gridspec_kw={"height_ratios": (3.2, 2.2)},
    )
    _lanes(above, now, *_unit(now.ended))
    by_cap = {name: ddp.step(layers, cap, *costs) for name, cap in CAPS.items()}
    _by_cap(below, by_cap, bucket, *_unit(now.ended))
    legend(
        figure,
        [Patch(facecolor=c, hatch=h, edgecolor=INK, label=name) for name, (c, h) in LOOKS.items()],
    )
    return finish(figure, (), _says(model, bucket, now, by_cap, costs), _notes(costs))


def _unit(seconds: float) -> tuple[float, str]:
    """(units in a second, their name) for times up to this."""
    return (1.0, "seconds") if seconds >= 10 else (1e3, "milliseconds")


def _time(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:,.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    if 0 < seconds < 0.9995e-3:
        return f"{1e6 * seconds:.3g} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{1e3 * seconds:,.0f} ms"


def _lanes(axes, now: ddp.Step, scale: float, unit: str) -> None:
    """What the rank computes above, what its link carries below, and the end of both."""
    longest = scale * now.ended
    _spans(axes, now.forward, 0, "forward", scale, longest)
    _spans(axes, now.backward, 0, "backward, layer by layer", scale, longest)
    hidden = [span for span in now.reduces if span.began < now.computed]
    waited = [span for span in now.reduces if span.ended > now.computed]
    end = now.computed
    early = [ddp.Span(s.name, s.began, min(s.ended, end)) for s in hidden]
    late = [ddp.Span(s.name, max(s.began, end), s.ended) for s in waited]
    _spans(axes, early, 1, "all-reduce beside the backward", scale, longest)
    _spans(axes, late, 1, "all-reduce that is waited for", scale, longest)
    frames = [(scale * span.began, scale * span.seconds) for span in now.reduces]
    line = 0.8 if len(frames) <= MANY else 0.3
    axes.broken_barh(frames, (0.7, 0.6), facecolor="none", edgecolor=INK, linewidth=line)
    for span in now.reduces:  # a bucket that is both has one frame and one name
        _name(axes, span, 1, scale, longest)
    if len(now.reduces) <= FEW:
        for full, span in zip(now.ready, now.reduces, strict=True):
            way = ([scale * full, scale * span.began], [0.31, 0.69])
            axes.plot(*way, color=INK, linewidth=1, marker="o", markersize=3)
    axes.axvline(longest, color=BLACK, linewidth=2)
    axes.set_yticks((0, 1), ("computes", "sends and\nreceives"))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(1.4, -0.4)
    axes.set_xlim(0, 1.01 * longest)
    axes.set_xlabel(f"{unit} since the step began")
    axes.grid(axis="x")
    across = axes.get_yaxis_transform()
    for y, words in ((-0.02, _time(now.computed)), (0.98, _time(now.reducing))):
        axes.text(1.02, y, words, transform=across, va="center", fontsize=SMALL)
    waits = now.ended - now.computed
    axes.text(1.02, 0.48, f"waits {_time(waits)}", transform=across, va="center", fontsize=SMALL)


def _spans(axes, spans: list, lane: int, look: str, scale: float, longest: float) -> None:
    """Boxes of one look, with their names where these fit."""
    colour, hatch = LOOKS[look]
    boxes = [(scale * span.began, scale * span.seconds) for span in spans]
    edge = "white" if hatch else INK
    axes.broken_barh(
        boxes, (lane - 0.3, 0.6), facecolor=colour, hatch=hatch, edgecolor=edge, linewidth=0.5
    )
    if lane == 1:
        return
    for span in spans:
        _name(axes, span, lane, scale, longest)


def _name(axes, span, lane: int, scale: float, longest: float) -> None:
    """The name of a box, or its number alone, where there is room for it."""
    inches = scale * span.seconds / longest * INCHES
    for words in (span.name, span.name.split()[-1] if span.name[-1].isdigit() else ""):
        if words and inches > 0.085 * len(words) + 0.05:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if lane == 1 else None
            middle = scale * (span.began + span.ended) / 2
            axes.text(middle, lane, words, ha="center", va="center", fontsize=10, bbox=box)
            return


def _by_cap(axes, by_cap: dict, chosen: str, scale: float, unit: str) -> None:
    """The step's end for each cap, the chosen one marked, between no waiting and no overlap."""
    ends = [scale * step.ended for step in by_cap.values()]
    any_step = next(iter(by_cap.values()))
    axes.plot(range(len(ends)), ends, "o-", color=BLUE)
    place = list(by_cap).index(chosen)
    look = {"marker": "D", "markersize": 14, "color": VERMILLION, "zorder": 4, "clip_on": False}
    axes.plot(place, ends[place], **look)
    axes.axhline(scale * any_step.computed, color=PALE, linestyle="--", linewidth=2)
    low = scale * any_step.computed
    high = max(ends)
    margin = max(high - low, 0.1 * low)
    below = {"ha": "right", "va": "top", "fontsize": SMALL}
    axes.text(len(ends) - 0.6, low - 0.04 * margin, "computing alone", **below)
    axes.set_ylim(low - 0.35 * margin, high + 0.2 * margin)
    words = [f"{name}\n{len(step.sizes)}" for name, step in by_cap.items()]
    axes.set_xticks(range(len(words)), words, fontsize=11)
    axes.set_xlabel("bucket cap in MiB, and below it how many buckets that makes")
    axes.set_ylabel(f"step ({unit.replace('milliseconds', 'ms').replace('seconds', 's')})")
    axes.grid(axis="y")


def _notes(costs: tuple) -> tuple[str, ...]:
    ranks, bytes_per_second, latency, compute_seconds = costs
    return (
        "Predicted by a model, nothing here is measured. An all-reduce costs what the alpha-beta "
        f"model (Hockney, 1994) says of a ring: 2(N-1) messages of {1e6 * latency:g} µs + bytes/N "
        f"at {bytes_per_second / 1e9:g} GB/s; one bucket after another.",
        f"Given: {_time(compute_seconds)} of computing, the backward twice the forward, layers by "
        "their operations. Communicating takes nothing from it. Gradients of 4 bytes. Without the "
        "optimizer. Buckets by DDP's rule. Default: the first bucket has 1 MiB, the others 25.",
    )


def _says(model: str, bucket: str, now, by_cap: dict, costs: tuple) -> str:
    """The picture in words."""
    ends = ", ".join(
        f"{name} ({len(step.sizes)} buckets) {_time(step.ended)}" for name, step in by_cap.items()
    )
    sizes = [size / ddp.MIB for size in now.sizes]
    filled = f"{len(sizes)} buckets of {min(sizes):.3g} to {max(sizes):.3g} MiB"
    return (
        f"Predicted step of {model} on {costs[0]} ranks with bucket cap {bucket}: {filled}. "
        f"Forward and backward end at {_time(now.computed)}, the first all-reduce begins at "
        f"{_time(now.reduces[0].began)}, the last ends at {_time(now.reduces[-1].ended)}. All "
        f"all-reduces take {_time(now.reducing)}, {_time(now.hidden)} of it beside the backward. "
        f"The step ends at {_time(now.ended)}. By bucket cap in MiB: {ends}. "
        + " ".join(_notes(costs))
    )
