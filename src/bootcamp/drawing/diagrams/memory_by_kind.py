"""What one rank holds, by formula, for each strategy: `plots.show(memory.held("7.5 B", 64))`.

Everything drawn comes from bootcamp.theory.memory. Nothing here is measured, and the figure says
so.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams.zero_stages import KINDS
from bootcamp.drawing.palette import BLACK, INK
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.theory import memory

WORDS = {"optimizer": "optimizer state"}
ROOM = 1.06  # of the axis behind the last line


@styled
def held(
    model: str = "7.5 B",
    ranks: int = 64,
    precision: str = "bf16 mixed",
    samples: int = 1,
    kept: str = memory.KEPT[1],
    shard: int = 8,
) -> Figure:
    """A bar of parameters, gradients, optimizer state and activations for each strategy.

    model: of memory_theory.models(). The rest is as memory_theory.held has it.
    """
    shape = memory.models()[model]
    rows = memory.held(shape, ranks, shard, precision, samples, kept)
    gpus = memory.gpus()
    of = "1 rank" if ranks == 1 else f"{ranks} ranks"
    figure, axes = begin(f"Predicted: what one of {of} holds of {model}", 6.4)
    totals = {name: sum(row.values()) for name, row in rows.items() if isinstance(row, dict)}
    scale, unit = _unit(max(totals.values()))
    limit = _limit(max(totals.values()), gpus) / scale
    for place, row in enumerate(rows.values()):
        if isinstance(row, str):
            box = {"facecolor": "white", "edgecolor": "none", "pad": 2}
            look = {"va": "center", "fontsize": SMALL, "fontstyle": "italic", "bbox": box}
            axes.text(0.01 * limit, place, row, zorder=4, **look)
        else:
            _bar(axes, place, row, scale, limit, gpus)
    _lines(axes, [gpu * 1e9 / scale for gpu in gpus], gpus, limit)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, limit)
    axes.set_xlabel(f"{unit} on this rank")
    legend(figure, _handles())
    notes = _notes(shape, precision, samples, kept)
    return finish(figure, (), _says(model, ranks, rows, totals, gpus, notes), notes)


def _unit(largest: float) -> tuple[float, str]:
    return (1e9, "GB") if largest >= 1e9 else (1e6, "MB")


def _limit(largest: float, gpus: list[int]) -> float:
    """Where the axis ends, in bytes: behind the first GPU that holds it all, or the largest one."""
    if largest < 0.9e9 * gpus[0]:
        return ROOM * largest
    fitting = [gpu for gpu in gpus if largest <= gpu * 1e9]
    return ROOM * 1e9 * (fitting[0] if fitting else gpus[-1])


def _bar(axes, place: int, row: dict, scale: float, limit: float, gpus: list[int]) -> None:
    """The kinds side by side, cut off at the end of the axis; the sum behind it."""
    left = 0.0
    for kind, (colour, hatch) in KINDS.items():
        size = row[kind] / scale
        seen = max(0.0, min(size, limit - left))
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.barh(place, seen, left=left, height=0.66, **look)
        left += seen
    total = sum(row.values())
    across = axes.get_yaxis_transform()
    if total / scale > limit:
        look = {"ha": "right", "va": "center", "fontsize": SMALL, "transform": across}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(0.994, place, "▶", zorder=4, color=INK, bbox=box, **look)
    words = f"{_size(total)}: {_fits(total, gpus)}"
    axes.text(1.015, place, words, transform=across, va="center", fontsize=SMALL)


def _size(size: float) -> str:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= scale:
            value = size / scale
            return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
    return f"{size:.0f} bytes"


def _fits(total: float, gpus: list[int]) -> str:
    """The smallest GPU that has room for it."""
    fitting = [gpu for gpu in gpus if total <= gpu * 1e9]
    return f"fits {fitting[0]}" if fitting else "fits none"


def _lines(axes, places: list[float], gpus: list[int], limit: float) -> None:
    """A line for each size of a GPU that is in sight, its size above it."""
    above = {"textcoords": "offset points", "fontsize": SMALL}
    seen = [(place, gpu) for place, gpu in zip(places, gpus, strict=True) if place < limit]
    for place, gpu in seen:
        axes.axvline(place, color=BLACK, linewidth=1.8, linestyle="--", zorder=3)
        where = {"xycoords": axes.get_xaxis_transform(), "ha": "center"}
        axes.annotate(f"{gpu}", (place, 1), (0, 4), **where, **above)
    words = "GB of a GPU" if seen else f"a GPU of {gpus[0]} GB\nis out of sight"
    axes.annotate(words, (1.015, 1), (0, 4), xycoords="axes fraction", **above)


def _handles() -> list[Patch]:
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=WORDS.get(kind, kind))
        for kind, (colour, hatch) in KINDS.items()
    ]


def _notes(shape, precision: str, samples: int, kept: str) -> tuple[str, ...]:
    each = memory.PRECISIONS[precision]
    bytes_of = " + ".join(str(each[kind]) for kind in ("parameters", "gradients", "optimizer"))
    what = "AdamW" if precision == "fp32" else "AdamW in 32 bit, with a copy of the parameters"
    many = {0: "no sample", 1: "1 sample"}.get(samples, f"{samples} samples")
    return (
        "By formula, nothing here is measured. State: arXiv:1910.02054, section 5; "
        f"{bytes_of} bytes a parameter ({what}). Activations: arXiv:2205.05198, of {many} of "
        f"{shape.context:,} tokens in each forward; kept: {kept}.",
        "Left out: what is gathered for a moment (a layer in ZeRO-3), DDP's buckets, gaps, the "
        "libraries. Pipeline: 1F1B, as many micro-batches in flight as stages. Sizes of GPU memory "
        "as sold; fits: the smallest that does.",
    )


def _says(model: str, ranks: int, rows: dict, totals: dict, gpus: list[int], notes) -> str:
    """The picture in words."""
    told = []
    for name, row in rows.items():
        if isinstance(row, str):
            told.append(f"{name}: {row}")
            continue
        kinds = ", ".join(f"{WORDS.get(kind, kind)} {_size(row[kind])}" for kind in KINDS)
        told.append(f"{name}: {_size(totals[name])} ({kinds}), {_fits(totals[name], gpus)} GB")
    head = f"Predicted bytes of one rank, {model}, {ranks} ranks. "
    return head + "; ".join(told).replace("fits none GB", "fits none") + ". " + " ".join(notes)
