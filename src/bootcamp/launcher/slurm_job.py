"""A job that was handed in to a cluster (slurm.py): its state, its output, its end."""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootcamp.paths import LOGS
from bootcamp.records import runs
from bootcamp.records.steps import read_steps

ENDED = {  # of squeue(1)'s states, those after which nothing more happens
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
QUEUED_AGAIN = {"NODE_FAIL", "PREEMPTED"}  # as soon as its processes have gone, if it may be
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """A job, or the jobs of an array. id: its number. script: its job file."""

    cluster: object
    id: int
    script: str

    def rows(self) -> list[dict[str, str]]:
        """What Slurm knows of it, as `scontrol show job` names it; an array has several."""
        said = self.cluster.run(f"scontrol --oneliner show job {self.id}", quiet=True).output
        rows = [_fields(line) for line in said.splitlines() if line.startswith("JobId=")]
        return sorted(rows, key=lambda row: row.get("ArrayTaskId", "").zfill(9))

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, ...; of an array all that there are."""
        return "+".join(sorted({row["JobState"] for row in self.rows()}))

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return max(int(row["Restarts"]) for row in self.rows())

    @property
    def logs(self) -> list[Path]:
        """The files that it prints into."""
        return list(dict.fromkeys(Path(row["StdOut"]) for row in self.rows()))

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return "".join(log.read_text(errors="replace") for log in self.logs if log.exists())

    @property
    def folder(self) -> Path:
        """Where its ranks leave their record: job files of the course name it so."""
        return LOGS / f"{self.rows()[0]['JobName']}-{self.id}"

    @property
    def record(self) -> runs.Run | None:
        """The record that its ranks have left, None if they left none."""
        folder = self.folder
        return runs.load(folder) if (folder / "summary.json").exists() else None

    @property
    def seen(self) -> str:
        """Its state, the ranks and hosts of its record, and its output, in this order."""
        run = self.record
        config = run.config if run else {}
        hosts = config.get("hosts")
        where = f"{config.get('processes')} ranks on {hosts} host{'s' * (hosts != 1)}"
        return f"{self.state}, {where if config else 'no record'}\n{self.output}"

    def wait(self, seconds: float = 120, until: str | None = None) -> str:
        """Wait for its end, or until it has printed a text; returns its state.

        Raises TimeoutError with the end of its output; RuntimeError if it ended without the text.
        """
        self._wait(seconds, until and (lambda: until in self.output), f"{until!r}")
        return self.state

    def wait_for_steps(self, count: int, seconds: float = 120) -> None:
        """Wait until its record has so many training steps. Raises as `wait`."""
        folder = self.folder
        self._wait(seconds, lambda: len(read_steps(folder)) >= count, f"{count} step(s)")

    def _wait(self, seconds: float, enough: Callable[[], bool] | None, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not (enough and enough()):
            ended = all(map(_has_ended, self.rows()))
            if ended and enough and not enough():
                raise RuntimeError(f"{self} ended without {what}:\n{self.output[-2000:]}")
            if ended:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self}: not yet after {seconds:g} s\n{self.output[-2000:]}")
            time.sleep(POLL_SECONDS)

    def signal(self, name: str, *options: str) -> None:
        """Send it a signal. "--batch" means the job file's shell alone, "--full" all of it."""
        self.cluster.run(shlex.join(["scancel", f"--signal={name}", *options, str(self.id)]))

    def __repr__(self) -> str:
        return f"job {self.id} ({self.script}): {self.state}"


def _has_ended(row: dict[str, str]) -> bool:
    state = row["JobState"]
    return state in ENDED and not (state in QUEUED_AGAIN and row["Requeue"] == "1")


def _fields(line: str) -> dict[str, str]:
    """The fields of one line of scontrol; their values have no spaces where we read them."""
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, mark, value in pairs if mark}
