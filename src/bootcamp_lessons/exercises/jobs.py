"""Exercises of lessons 09 and 09b: repair job files, which are tried on a Slurm cluster."""

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
    """Repair a broken job file; stopped: the job gets USR1, and must be queued again."""

    stopped: bool = False

    @property
    def broken(self) -> jobs.BrokenJob:
        return jobs.read_broken_jobs()[self.name]

    @property
    def path(self) -> Path:
        return super().path.with_suffix(".sbatch")

    def starting_point(self) -> str:
        return self.broken.text

    def solution_path(self) -> Path:
        return jobs.find(self.broken.of)

    def attempt(self, given: Path) -> str:
        """Run a job file on a new cluster of two hosts. Raises Wrong."""
        parsed = subprocess.run(["bash", "-n", given], capture_output=True, text=True)
        if parsed.returncode:
            raise Wrong("a job file that bash can read", parsed.stderr.strip())
        try:
            cluster = slurm.Cluster(hosts=2, cpus=8)
        except slurm.SlurmError as error:
            raise NotTried("a cluster to run it on", str(error)) from None
        with cluster:
            try:
                return self.judge(self.submit(cluster, given))
            except slurm.SlurmError as error:
                raise Wrong("a job file that sbatch takes", str(error)) from None

    @property
    def _flags(self) -> dict:
        return TO_BE_STOPPED if self.stopped else TRAINED

    def submit(self, cluster: slurm.Cluster, given: Path) -> SlurmJob:
        """Submit a job file, and send USR1 to the job if the task is about that."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in self._flags.items()]
        job = cluster.sbatch(given, arguments=(*arguments, "--timeout=5", "--save-every=1000"))
        if self.stopped:
            with contextlib.suppress(TimeoutError, RuntimeError):  # `judge` says what is wrong
                job.wait(SECONDS, steps=1)
                job.signal("USR1", "--batch")
        return job

    def judge(self, job: SlurmJob) -> str:
        """Wait for the job's end, and say why it is right. Raises Wrong or SlurmError."""
        try:
            job.wait(SECONDS)
        except TimeoutError:
            job.cluster.run(f"scancel {job.id}")
        seen, run, ranks = job.summary, job.record, 2 if self.stopped else 4
        meaning = self.broken.means if re.search(self.broken.seen, seen, re.S) else ""
        if not seen.startswith(f"COMPLETED, {ranks} ranks on 2 hosts"):
            raise Wrong(f"COMPLETED, {ranks} ranks on 2 hosts", _shorten(seen), meaning)
        if self.stopped and (job.restarts != 1 or not run.ranks[0]["first_step"]):
            expected = "a job that saved, was queued again, and went on"
            raise Wrong(expected, _shorten(seen), meaning)
        losses = equality.baseline(**self._flags).losses
        difference = max(abs(a - b) for a, b in zip(run.losses, losses, strict=True))
        if not difference < 1e-5:
            raise Wrong("the losses of the baseline", f"losses that differ by {difference:.1e}")
        went_on = ", told to end on the way, queued again" if self.stopped else ""
        return f"{seen.splitlines()[0]}{went_on}, with the losses of the baseline."


def _shorten(seen: str, lines: int = 6) -> str:
    """Return the first line of a job's report, and the last ones that name an error."""
    first, *rest = seen.splitlines()
    telling = [line for line in rest if re.search(r"[Ee]rror|joined|can't open|[Ss]ignal", line)]
    return "\n".join([first, *(line[:200] for line in telling[-lines:])])


def _make_task(broken: jobs.BrokenJob) -> JobTask:
    return JobTask(
        broken.name,
        task=f"Repair this job file, so that it trains on two hosts ({broken.of}.sbatch once).",
        hint=broken.means,
        stronger=broken.cure,
        ranks=4,
        stopped=broken.of == "ddp_requeue",
    )


TASKS = [_make_task(broken) for broken in jobs.read_broken_jobs().values() if broken.seen]
