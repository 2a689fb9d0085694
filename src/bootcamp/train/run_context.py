"""What a rank knows of its run beyond the flags: devices, process group, folder, mesh."""

import argparse
import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootcamp.records.heartbeat import Heartbeat

HOLD_ONE_MODEL = ("pipeline", "tensor", "context")  # axes of a mesh that share a batch


@dataclass
class RunContext:
    """What follows from the flags.

    devices: those of this rank, such as ["cuda:1"]. backend: of the process group.
    timeout: how long a rank waits in a collective. run_dir: the absolute path of the record.
    axes, mesh: the names of the dimensions that the ranks are laid out on, and their sizes.
    own_flags: names of the flags that only this script has.
    first_step: the step that training begins with; above 0 after checkpoint.load resumed.
    heartbeat, write_steps: made by record.Run, to show that this rank is alive, and to write the
        rows of all steps that have ended.
    """

    args: argparse.Namespace
    devices: list[str]
    backend: str
    timeout: datetime.timedelta
    run_dir: Path
    axes: tuple[str, ...]
    mesh: tuple[int, ...]
    own_flags: list[str]
    first_step: int = 0
    heartbeat: Heartbeat | None = None
    write_steps: Callable[[], None] | None = None

    @property
    def device(self) -> str:
        """The rank's device, the first of several."""
        return self.devices[0]

    @property
    def data_parallel(self) -> int:
        """Number of shares that a global batch is divided into."""
        return shares(self.axes, self.mesh)

    def size(self, axis: str) -> int:
        """Number of ranks along an axis of the mesh."""
        return self.mesh[self.axes.index(axis)]


def shares(axes: tuple[str, ...], mesh: tuple[int, ...]) -> int:
    """Number of shares of a batch: ranks along an axis of HOLD_ONE_MODEL train the same samples."""
    sizes = zip(axes, mesh, strict=True)
    return math.prod(size for axis, size in sizes if axis not in HOLD_ONE_MODEL)
