"""A map of the axes along which a training is divided."""

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import canvas, label
from bootcamp.drawing.style import styled

AXES = (
    ("DP", "the batch", "gradients", "between hosts", "beside the backward"),
    ("ZeRO, FSDP", "the batch and the states", "parameters, gradients", "between hosts", "layer"),
    ("HSDP", "the states in a host", "parameters in a host", "both", "layer"),
    ("TP + SP", "each matrix", "activations", "in a host", "in each layer"),
    ("PP", "the layers", "activations", "between hosts", "each micro-batch"),
    ("CP", "the tokens of a sample", "keys and values", "in a host", "in each attention"),
    ("EP", "the experts", "tokens", "in a host", "in each expert layer"),
)


@styled
def axes_map() -> Figure:
    """What each axis divides, what a GPU sends for it, on which link, and when."""
    says = " ".join(f"{n} divides {d}, sends {s}, {link}, {w}." for n, d, s, link, w in AXES)
    figure, axes = canvas("The axes of parallelism", says, 5.0)
    heads = ("axis", "divides", "sends", "link", "when")
    for row, cells in enumerate((heads, *AXES)):
        for column, words in enumerate(cells):
            label(axes, 20 * column, 46 - 6 * row, words, at="left", bold=row == 0 or column == 0)
    return figure
