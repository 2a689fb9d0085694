"""Figures of runs: `plots.show(plots.throughput(*runs))`. Each takes Run objects, returns a Figure.

Every figure names the machine, the ranks and the origin of its numbers at its foot, marks runs with
more ranks than cores or on shared cores, and carries its values as a sentence in `figure.alt`.
Raises ValueError on a run whose record lacks what is drawn, TypeError on anything but runs.
Figures of plans take tables of predictions instead, and say that nothing in them is measured.
"""

from bootcamp.drawing.plots.axes_map import axes_map
from bootcamp.drawing.plots.forecasts import checkpoint_interval, predicted_and_published
from bootcamp.drawing.plots.losses import loss_curves
from bootcamp.drawing.plots.plans import chosen_plan, feasible_plans, memory_by_part, what_breaks
from bootcamp.drawing.plots.ranks import memory, timeline
from bootcamp.drawing.plots.roofline_chart import roofline
from bootcamp.drawing.plots.speed import achieved, scaling, throughput
from bootcamp.drawing.plots.traffic import all_reduce_sweep, communication_roofline, sent_bytes
from bootcamp.drawing.style import show

__all__ = (
    "achieved",
    "all_reduce_sweep",
    "axes_map",
    "checkpoint_interval",
    "chosen_plan",
    "communication_roofline",
    "feasible_plans",
    "loss_curves",
    "memory",
    "memory_by_part",
    "predicted_and_published",
    "roofline",
    "scaling",
    "sent_bytes",
    "show",
    "throughput",
    "timeline",
    "what_breaks",
)
