"""Lesson 02c: the parts of a step, and what shortens each."""

from bootcamp.drawing.canvas import arrow, box, diagram, label
from bootcamp.drawing.palette import LIGHT
from bootcamp.drawing.style import SMALL

PARTS = (  # name, colour, what shortens it
    ("waits for\nits batch", LIGHT.orange, "DataLoader\nworkers"),
    ("copies it", LIGHT.orange, "pinned memory,\nnon_blocking"),
    ("calls\noperators", LIGHT.blue, "fused, foreach,\nCUDA graphs"),
    ("moves numbers\nthrough memory", LIGHT.green, "torch.compile,\nfused"),
    ("computes\nproducts", LIGHT.green, "TF32,\n16 bits"),
)


@diagram("The parts of a step, and what shortens each (not to scale)", 2.6)
def parts_of_a_step(axes) -> None:
    """Five boxes in a row: the step waits for its batch, copies it, calls operators, moves numbers
    through memory, and computes products. Below each stands what shortens it: workers of the
    DataLoader; pinned memory and non-blocking copies; fused and foreach operators or CUDA graphs;
    torch.compile and fused operators; TF32 and 16 bits.
    """
    for number, (name, colour, remedy) in enumerate(PARTS):
        left = 1 + 20 * number
        box(axes, left, 14, 18, 10, name, colour=colour)
        arrow(axes, (left + 9, 8), (left + 9, 13.5))
        label(axes, left + 9, 4.5, remedy, size=SMALL)
