"""The context of a rank: its flags, and its devices, backend, folder and mesh."""

import argparse
import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootcamp.records.heartbeat import Heartbeat

MODEL_PARALLEL_AXES = ("pipeline", "tensor", "context")  # their ranks train on the same samples


@dataclass
class RunContext:
    """A rank's flags and what was derived from them.

    devices: those of this rank, such as ["cuda:1"]. backend: of the process group.
    timeout: how long a rank waits in a collective. run_dir: the absolute path of the run's folder.
    axes, mesh: the names and sizes of the mesh's dimensions, as of a DeviceMesh.
    own_flags: names of the flags that only this script has.
    first_step: 0, or the step after the one from which checkpoint.load resumed.
    heartbeat, write_steps: made by record.Run: the rank's sign of life, and a function that writes
        the rows of all finished steps.
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
        """Number of parts that a global batch is divided into."""
        return shares(self.axes, self.mesh)

    def size(self, axis: str) -> int:
        """Number of ranks along an axis of the mesh."""
        return self.mesh[self.axes.index(axis)]


def shares(axes: tuple[str, ...], mesh: tuple[int, ...]) -> int:
    """Return the number of parts of a global batch."""
    sizes = zip(axes, mesh, strict=True)
    return math.prod(size for axis, size in sizes if axis not in MODEL_PARALLEL_AXES)
