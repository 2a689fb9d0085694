"""The job files of the course, src/jobs/*.sbatch, and their broken twins, derived from them.

jobs.path("ddp_srun"), jobs.all_broken()["job_space"].text
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bootcamp.paths import SRC

JOBS = SRC / "jobs"


def path(name: str) -> Path:
    """Return the path of a job file of the course."""
    return JOBS / f"{name}.sbatch"


@dataclass(frozen=True)
class Broken:
    """A working job file with one fault; broken.toml explains the fields."""

    name: str
    of: str
    fault: str
    old: str
    new: str
    lint: str
    seen: str
    means: str
    cure: str

    @property
    def text(self) -> str:
        """The broken file. Raises ValueError if the working one has changed where it differs."""
        working = path(self.of).read_text()
        if working.count(self.old) != 1:
            raise ValueError(f"{self.of}.sbatch has {self.old!r} {working.count(self.old)} times")
        return working.replace(self.old, self.new)


@cache
def all_broken() -> dict[str, Broken]:
    """Read all broken job files, by name."""
    about = tomllib.loads((JOBS / "broken.toml").read_text())
    return {name: Broken(name, **fields) for name, fields in about.items()}
