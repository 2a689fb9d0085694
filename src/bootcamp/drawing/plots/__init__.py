"""Figures of runs: `plots.show(plots.throughput(*runs))`. Each takes Run objects, returns a Figure.

Every figure names the machine, the ranks and the origin of its numbers at its foot, marks runs with
more ranks than cores or on shared cores, and carries its values as a sentence in `figure.alt`.
Raises ValueError on a run whose record lacks what is drawn, TypeError on anything but runs.
"""

from bootcamp.drawing.plots.losses import loss_curves
from bootcamp.drawing.plots.rooflines import all_reduce_sweep, communication_roofline, roofline
from bootcamp.drawing.plots.run_bars import achieved, memory, sent_bytes, throughput
from bootcamp.drawing.plots.saves import checkpoint_interval
from bootcamp.drawing.plots.scaling import scaling
from bootcamp.drawing.plots.timeline import timeline
from bootcamp.drawing.style import show
