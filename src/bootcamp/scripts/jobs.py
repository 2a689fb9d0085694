"""The Slurm job files of the course, src/jobs/*.sbatch, and broken copies of them for exercises."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bootcamp.paths import SRC

JOBS = SRC / "jobs"


def find(name: str) -> Path:
    return JOBS / f"{name}.sbatch"


@dataclass(frozen=True)
class BrokenJob:
    """A job file with one fault, made from a working one; broken.toml explains the fields."""

    name: str
    of: str
    fault: str
    old: str
    new: str
    means: str
    cure: str
    seen: str = ""
    asks: str = ""

    @property
    def text(self) -> str:
        """The broken file. Raises ValueError if the working one no longer has the line once."""
        working = find(self.of).read_text()
        if working.count(self.old) != 1:
            raise ValueError(f"{self.of}.sbatch has {self.old!r} {working.count(self.old)} times")
        return working.replace(self.old, self.new)


@cache
def read_broken_jobs() -> dict[str, BrokenJob]:
    """Read src/jobs/broken.toml: {name: broken job file}."""
    about = tomllib.loads((JOBS / "broken.toml").read_text())
    return {name: BrokenJob(name, **fields) for name, fields in about.items()}
