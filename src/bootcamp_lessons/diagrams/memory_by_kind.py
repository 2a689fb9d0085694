"""What one rank holds, by formula, for each strategy: `memory_by_kind.held("7.5 B", 64)`.

Everything drawn comes from bootcamp.costs.memory. Nothing here is measured, and the figure names
its formulas.
"""

from matplotlib.figure import Figure

from bootcamp.costs import memory
from bootcamp.drawing.charts import WHITE, above, handles, margin, rows, stacked
from bootcamp.drawing.palette import BLACK, INK, KINDS
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.units import scale, size

FORMULAS = (
    "By formula, nothing here is measured. State: arXiv:1910.02054, section 5. Activations of a "
    "forward pass: arXiv:2205.05198.",
    "Left out: what is gathered for a moment (a unit of ZeRO-3, two with prefetch), DDP's buckets, "
    "gaps, the libraries. Pipeline: 1F1B, as many micro-batches in flight as stages. Sizes of GPU "
    "memory as sold; fits: the smallest that does.",
)
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

    model: of theory.memory.models(). The rest is as theory.memory.held has it.
    """
    shape = memory.models()[model]
    held = memory.held(shape, ranks, shard, precision, samples, kept)
    gpus = memory.gpus()
    of = "1 rank" if ranks == 1 else f"{ranks} ranks"
    figure, axes = begin(f"Predicted: what one of {of} holds of {model}", 6.4)
    largest = max(sum(kinds.values()) for kinds in held.values() if isinstance(kinds, dict))
    factor, unit = scale(largest)
    limit = _limit(largest, gpus) / factor
    for row, kinds in enumerate(held.values()):
        if isinstance(kinds, str):
            look = {"va": "center", "fontsize": SMALL, "fontstyle": "italic", "bbox": WHITE}
            axes.text(0.01 * limit, row, kinds, zorder=4, **look)
            continue
        if stacked(axes, row, kinds, factor, limit) > limit:
            margin(axes, row, "▶", x=0.994, ha="right", zorder=4, color=INK, bbox=WHITE)
        total = sum(kinds.values())
        margin(axes, row, f"{size(total)}: {_fits(total, gpus)}", x=1.015)
    _gpu_lines(axes, [gpu for gpu in gpus if gpu * 1e9 / factor < limit], factor, gpus)
    rows(axes, list(held), beside=0.5)
    axes.set(xlim=(0, limit), xlabel=f"{unit} on this rank")
    legend(figure, handles(KINDS))
    notes = _notes(shape, precision, samples, kept)
    return finish(figure, (), _says(model, ranks, held, gpus, notes), notes)


def _limit(largest: float, gpus: list[int]) -> float:
    """Where the axis ends, in bytes: behind the first GPU that holds it all, or the largest one."""
    if largest < 0.9e9 * gpus[0]:
        return ROOM * largest
    fitting = [gpu for gpu in gpus if largest <= gpu * 1e9]
    return ROOM * 1e9 * (fitting[0] if fitting else gpus[-1])


def _fits(total: float, gpus: list[int]) -> str:
    """The smallest GPU that has room for it."""
    fitting = [gpu for gpu in gpus if total <= gpu * 1e9]
    return f"fits {fitting[0]}" if fitting else "fits none"


def _gpu_lines(axes, seen: list[int], factor: float, gpus: list[int]) -> None:
    """A line for each size of a GPU that is in sight, its size above it."""
    for gpu in seen:
        place = gpu * 1e9 / factor
        axes.axvline(place, color=BLACK, linewidth=1.8, linestyle="--", zorder=3)
        above(axes, place, 1, f"{gpu}", fontsize=SMALL, xycoords=axes.get_xaxis_transform())
    words = "GB of a GPU" if seen else f"a GPU of {gpus[0]} GB\nis out of sight"
    above(axes, 1.015, 1, words, fontsize=SMALL, xycoords="axes fraction", ha="left")


def _notes(shape, precision: str, samples: int, kept: str) -> tuple[str, ...]:
    each = memory.PRECISIONS[precision]
    bytes_of = " + ".join(str(each[kind]) for kind in ("parameters", "gradients", "optimizer"))
    what = "AdamW" if precision == "fp32" else "AdamW and a copy in fp32; FSDP2: 4 + 4 + 8"
    many = {0: "no sample", 1: "1 sample"}.get(samples, f"{samples} samples")
    return (
        f"{FORMULAS[0]} Here {bytes_of} bytes a parameter ({what}), and activations of {many} of "
        f"{shape.context:,} tokens; kept: {kept}.",
        FORMULAS[1],
    )


def _says(model: str, ranks: int, held: dict, gpus: list[int], notes) -> str:
    """The picture in words."""
    told = []
    for name, kinds in held.items():
        if isinstance(kinds, str):
            told.append(f"{name}: {kinds}")
            continue
        total = sum(kinds.values())
        parts = ", ".join(f"{kind} {size(kinds[kind.split()[0]])}" for kind in KINDS)
        fits = _fits(total, gpus)
        told.append(f"{name}: {size(total)} ({parts}), {fits}{'' if 'none' in fits else ' GB'}")
    head = f"Predicted bytes of one rank, {model}, {ranks} ranks. "
    return f"{head}{'; '.join(told)}. {' '.join(notes)}"
