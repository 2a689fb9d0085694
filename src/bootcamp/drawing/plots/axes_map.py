"""A map of the axes along which a training is divided: `plots.axes_map()`."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bootcamp.drawing.canvas import canvas, label
from bootcamp.drawing.palette import FOUR, GREY, INK
from bootcamp.drawing.style import styled

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
    + (
        "activations to the next\nstage, gradients back",
        "each micro-batch;\nends wait: bubble",
        HOSTS,
    ),
    ("context", "CP", "cut by columns", "copied")
    + ("keys and values of its\ntokens, to the others", "each attention,\npartly beside it", FIRST),
    ("expert", "EP", "cut by rows", "copied but for its experts")
    + ("tokens to experts and back:\n2 all-to-alls in each pass",)
    + ("the experts' layers\nwait for both", FIRST),
)
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
    """What each axis divides over four GPUs, what a GPU sends for it, when, and on which link."""
    says = " ".join(_sentence(*line) for line in AXES)
    figure, axes = canvas("The axes: what each divides over four GPUs", says, 4.6)
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


def _sentence(name, short, batch, model, sends, when, link) -> str:
    text = f"{name} ({short}): the batch is {batch}, the model is {model}. A GPU sends {sends}; "
    return " ".join(f"{text}{when}. Link: {link}.".split())


def _cut(axes, x: float, y: float, how: str) -> None:
    look = {"edgecolor": INK, "linewidth": 1, "hatch": "///" if "parts" in how else ""}
    for left, bottom, width, height, gpu in CUTS[how]:
        corner, colour = (x + WIDE * left, y + HIGH * bottom), "white" if gpu is None else FOUR[gpu]
        axes.add_patch(Rectangle(corner, WIDE * width, HIGH * height, facecolor=colour, **look))
