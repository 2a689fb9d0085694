"""Lessons 08c and 10: a map of the axes, eight ranks on three of them, loss curves with a bug."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bootcamp.drawing.canvas import arrow, arrows, box, canvas, diagram, label
from bootcamp.drawing.palette import BLUE, FOUR, GREEN, GREY, INK, PALE, TINTS, VERMILLION
from bootcamp.drawing.style import begin, legend, styled
from bootcamp_lessons.labs import silent_bugs

# How a rectangle is cut: (left, bottom, width, height, GPU), all of it is 1 x 1; GPU None: copied
CUTS = {
    "copied": [(0, 0, 1, 1, None)],
    "cut by rows": [(0, 0.75 - k / 4, 1, 0.25, k) for k in range(4)],
    "cut by columns": [(k / 4, 0, 0.25, 1, k) for k in range(4)],
    "kept in parts": [(k / 4, 0, 0.25, 1, k) for k in range(4)],
    "two copies, each kept in parts": [(k % 2 / 2, 0.56 * (k < 2), 0.5, 0.44, k) for k in range(4)],
    "copied but for its experts": [(0, 0.67, 1, 0.33, None), (0, 0, 1, 0.33, None)]
    + [(k / 4, 0.33, 0.25, 0.34, k) for k in range(4)],
}
# name, what becomes of the batch and of the model, what a GPU sends in a step, when, the link
HOSTS, FIRST = "slow will do:\nbetween hosts", "fast: in a host,\nthen between"
AXES = (
    ("data", "DDP", "cut by rows", "copied")
    + ("gradients, all-reduced:\nabout 2 × the model", "once a step, beside\nthe backward", HOSTS),
    ("sharded data", "ZeRO-3, FSDP", "cut by rows", "kept in parts")
    + ("parameters twice, gradients\nonce: 3 × the model", "each layer, beside\nthe one before it")
    + ("fast, or many\ntokens a GPU",),
    ("in groups", "HSDP", "cut by rows", "two copies, each kept in parts")
    + ("3 × the model in a group,\n2 × its part between them",)
    + ("each layer; between\ngroups once a step", "fast in a group,\nslow between"),
    ("tensor", "TP + SP", "copied", "cut by columns")
    + ("activations: 2 all-reduces\na layer in each pass", "the layer waits\nfor each")
    + ("the fastest:\nin a host",),
    ("pipeline", "PP", "copied", "cut by rows")
    + ("activations to the next\nstage, gradients back",)
    + ("each micro-batch;\nends wait: bubble", HOSTS),
    ("context", "CP", "cut by columns", "copied")
    + ("keys and values of its\ntokens, to the others", "each attention,\npartly beside it", FIRST),
    ("expert", "EP", "cut by rows", "copied but for its experts")
    + ("tokens to experts and back:\n2 all-to-alls in each pass",)
    + ("the experts' layers\nwait for both", FIRST),
)
SENTENCE = "{} ({}): the batch is {}, the model is {}. A GPU sends {}; {}. Link: {}. "
HEADS = ("axis", "batch", "model", "a GPU sends in a step", "when", "link")
PLACES = (0, 18.3, 27.6, 37, 64.5, 85)
FOOT = (
    "Batch: samples down, tokens across. Model: layers down, width across. Each colour is a GPU,\n"
    "white is copied to all. Hatched: kept in parts, gathered to compute."
)
WIDE, HIGH, ROW = 7.6, 4.2, 5.3  # of a rectangle; from one axis to the next
TEXT = {"at": "left", "size": 13, "linespacing": 1.2}  # points: they can be read on a slide too


@styled
def axes_map() -> Figure:
    """Draw what each axis divides over four GPUs, and what a GPU sends for it, when and where."""
    says = "".join(SENTENCE.format(*line).replace("\n", " ") for line in AXES)
    figure, axes = canvas("The axes: what each divides over four GPUs", says.strip(), 4.6)
    for x, words in zip(PLACES, HEADS, strict=True):
        label(axes, x, 44.5, words, bold=True, **TEXT)
    for row, (name, short, batch, model, *words) in enumerate(AXES):
        y = 38 - ROW * row
        axes.plot((0, 100), (y + 4.75, y + 4.75), color=GREY, linewidth=1)
        label(axes, 0, y + 3.4, name, bold=True, **TEXT)
        label(axes, 0, y + 1, short, **TEXT)
        for x, how in zip(PLACES[1:3], (batch, model), strict=True):
            _cut(axes, x, y, how)
        for x, text in zip(PLACES[3:], words, strict=True):
            label(axes, x, y + HIGH / 2, text, **TEXT)
    label(axes, 0, 2.3, FOOT, **TEXT)
    return figure


def _cut(axes, x: float, y: float, how: str) -> None:
    look = {"edgecolor": INK, "linewidth": 1, "hatch": "///" if "parts" in how else ""}
    for left, bottom, width, height, gpu in CUTS[how]:
        look["facecolor"] = "white" if gpu is None else FOUR[gpu]
        corner = (x + WIDE * left, y + HIGH * bottom)
        axes.add_patch(Rectangle(corner, WIDE * width, HIGH * height, **look))


@diagram("Eight ranks: pipeline × data × tensor is 2 × 2 × 2", 4.4)
def mesh(axes) -> None:
    """Two hosts with four ranks each. The left host has the first stage of the pipeline, ranks 0 to
    3, the right one the second stage, ranks 4 to 7. In a host, ranks in a row hold one copy of the
    stage and split its matrices: 0 and 1, 2 and 3; 4 and 5, 6 and 7. They are a tensor group. Ranks
    above each other hold the same part of two copies and average gradients: 0 and 2, 1 and 3; 4 and
    6, 5 and 7. They are a data group. Ranks at the same place of both hosts hand activations over.
    """
    for stage in range(2):
        x = 20 + 46 * stage
        box(axes, x - 2, 5, 34, 32, line="--", colour="white")
        label(axes, x + 15, 40, f"host {stage}: stage {stage}", bold=True)
        for rank in range(4):
            row, column = divmod(rank, 2)
            text = f"rank {4 * stage + rank}\npart {column}"
            box(axes, x + 17 * column, 25 - 17 * row, 13, 10, text, colour=TINTS[column])
        rows = ((x + 13.3, y, x + 16.7, y) for y in (30, 13))
        arrows(axes, *rows, style="<->", colour=VERMILLION)
        columns = ((left, 24.7, left, 18.3) for left in (x + 6.5, x + 23.5))
        arrows(axes, *columns, style="<->", colour=BLUE)
    for row, y in enumerate((30, 13)):
        arrow(axes, (52.4, y), (63.6, y), style="<->", colour=GREEN)
        label(axes, 17, y, f"samples\nof share {row}", at="right")
    for x, words, ink in (
        (20, "tensor: activations", VERMILLION),
        (52, "data: gradients", BLUE),
        (82, "pipeline: activations", GREEN),
    ):
        label(axes, x, 1.5, words, ink=ink, bold=True)


@styled
def loss_curves(found: dict | None = None) -> Figure:
    """Draw losses of scripts and their broken copies, of silent_bugs.read_curves() if not given."""
    found = found or silent_bugs.read_curves()
    title = "AdamW, 50 steps: the right training, and a broken copy"
    figure, panels = begin(title, 6.2, nrows=2, ncols=3, sharex=True, sharey=True)
    says = []
    for axes, (name, both) in zip(panels.flat, found["curves"].items(), strict=True):
        right, wrong = both["right"], both["wrong"]
        begun = len(right) - len(wrong)
        axes.plot(range(len(right)), right, color=PALE, linewidth=6, label="right")
        axes.plot(range(begun, len(right)), wrong, color=VERMILLION, linewidth=1.6, label="broken")
        gap = silent_bugs.compare_curves(both)
        axes.set_title(name.removeprefix("silent_"), fontsize=14, loc="left")
        words = f"apart: {gap['apart']:.2g} at most\na step moves: {gap['moves']:.2g}"
        axes.text(0.97, 0.95, words, transform=axes.transAxes, ha="right", va="top", fontsize=12)
        axes.tick_params(labelsize=12)
        says.append(f"{name}: at most {gap['apart']:.2g} apart")
    for axes in panels[-1]:
        axes.set_xlabel("step", fontsize=13)
    for axes in panels[:, 0]:
        axes.set_ylabel("loss", fontsize=13)
    legend(figure, panels.flat[0].get_legend_handles_labels()[0])
    where = f"Recorded on {found['machine']}, 2 CPU ranks, tiny GPT."
    figure.supxlabel(where, fontsize=11)
    figure.alt = f"Loss curves of six broken copies over the right ones. {'; '.join(says)}. {where}"
    return figure
