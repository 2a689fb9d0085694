"""Figures of runs: `plots.show(plots.throughput(*runs))`. Each takes Run objects, returns a Figure.

Nothing is launched, written or shown here, but by `show`. Every figure names the machine, the ranks
and the origin of its numbers at its foot, marks runs with more ranks than cores or on shared cores,
and carries its values as a sentence in `figure.alt`. A CPU rank's bar is blue, a GPU's is orange,
and the words name the device too.

All raise ValueError on a run whose record lacks what is drawn, TypeError on anything but runs.
"""

from bootcamp.drawing.plots.losses import loss_curves
from bootcamp.drawing.plots.rank_memory import memory
from bootcamp.drawing.plots.roofline_chart import roofline
from bootcamp.drawing.plots.scaling_curves import scaling
from bootcamp.drawing.plots.speed import achieved, throughput
from bootcamp.drawing.plots.step_lanes import timeline
from bootcamp.drawing.plots.traffic import all_reduce_sweep, sent_bytes
from bootcamp.drawing.style import show

__all__ = (
    "achieved",
    "all_reduce_sweep",
    "loss_curves",
    "memory",
    "roofline",
    "scaling",
    "sent_bytes",
    "show",
    "throughput",
    "timeline",
)
