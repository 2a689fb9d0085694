"""Exercises on job files: the reader gets one with a fault, and it is checked by running it."""

import contextlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bootcamp.classroom.tasks import NotTried, ScriptTask, Wrong
from bootcamp.experiments import equality
from bootcamp.hosts import slurm
from bootcamp.hosts.slurm import SlurmJob
from bootcamp.scripts import jobs

TRAINED = {"model": "mlp", "steps": 6, "global_batch": 12, "optimizer": "sgd"}
# long enough to be told to end on the way; at ten times this rate rounding grows beyond 1e-5
TO_BE_STOPPED = {**TRAINED, "steps": 400, "lr": 0.005}
SECONDS = 60


@dataclass(frozen=True)
class JobTask(ScriptTask):
    """A task whose starting point is a broken job file of the course, of the task's name."""

    stopped: bool = False  # whether the job is sent USR1, and has to be queued again

    @property
    def broken(self) -> jobs.Broken:
        return jobs.all_broken()[self.name]

    @property
    def path(self) -> Path:
        return super().path.with_suffix(".sbatch")

    def starting_point(self) -> str:
        return self.broken.text

    def solved(self) -> Path:
        return jobs.path(self.broken.of)

    def attempt(self, given: Path) -> str:
        """Run a job file on a cluster of two hosts. Raises Wrong."""
        parsed = subprocess.run(["bash", "-n", given], capture_output=True, text=True)
        if parsed.returncode:
            raise Wrong("a job file that bash can read", parsed.stderr.strip())
        try:
            cluster = slurm.start(hosts=2, cpus=8, quiet=True)
        except slurm.SlurmError as error:
            raise NotTried("a cluster to run it on", str(error)) from None
        try:
            return self.tried_on(cluster, given)
        except slurm.SlurmError as error:
            raise Wrong("a job file that sbatch takes", str(error)) from None
        finally:
            cluster.stop()

    def tried_on(self, cluster: slurm.Cluster, given: Path) -> str:
        """As attempt, on a cluster that runs already. Raises Wrong or SlurmError."""
        return self.judged(self.handed_in(cluster, given))

    @property
    def _flags(self) -> dict:
        return TO_BE_STOPPED if self.stopped else TRAINED

    def handed_in(self, cluster: slurm.Cluster, given: Path) -> SlurmJob:
        """The job, and if the task is about that, told to end already."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in self._flags.items()]
        job = cluster.sbatch(given, arguments=(*arguments, "--timeout=5", "--save-every=1000"))
        if self.stopped:
            with contextlib.suppress(TimeoutError, RuntimeError):  # `judged` says what is wrong
                job.wait(SECONDS, steps=1)
                job.signal("USR1", "--batch")
        return job

    def judged(self, job: SlurmJob) -> str:
        """Wait for the job's end; a sentence on why it is right. Raises Wrong or SlurmError."""
        try:
            job.wait(SECONDS)
        except TimeoutError:
            job.cluster.run(f"scancel {job.id}")
        seen, run, ranks = job.seen, job.record, 2 if self.stopped else 4
        meaning = self.broken.means if re.search(self.broken.seen, seen, re.S) else ""
        if not seen.startswith(f"COMPLETED, {ranks} ranks on 2 hosts"):
            raise Wrong(f"COMPLETED, {ranks} ranks on 2 hosts", _shortened(seen), meaning)
        if self.stopped and (job.restarts != 1 or not run.ranks[0]["first_step"]):
            expected = "a job that saved, was queued again, and went on"
            raise Wrong(expected, _shortened(seen), meaning)
        losses = equality.baseline(**self._flags).losses
        apart = max(abs(a - b) for a, b in zip(run.losses, losses, strict=True))
        if not apart < 1e-5:
            raise Wrong("the losses of the baseline", f"losses that differ by {apart:.1e}")
        went_on = ", told to end on the way, queued again" if self.stopped else ""
        return f"{seen.splitlines()[0]}{went_on}, with the losses of the baseline."


def _shortened(seen: str, lines: int = 6) -> str:
    """The first line of what was seen, and the last ones that name an error."""
    first, *rest = seen.splitlines()
    telling = [line for line in rest if re.search(r"[Ee]rror|joined|can't open|[Ss]ignal", line)]
    return "\n".join([first, *(line[:200] for line in telling[-lines:])])


def _task(broken: jobs.Broken) -> JobTask:
    return JobTask(
        broken.name,
        task=f"Repair this job file, so that it trains on two hosts ({broken.of}.sbatch once).",
        hint=broken.means,
        stronger=broken.cure,
        ranks=4,
        stopped=broken.of == "ddp_requeue",
    )


TASKS = [_task(broken) for broken in jobs.all_broken().values()]
