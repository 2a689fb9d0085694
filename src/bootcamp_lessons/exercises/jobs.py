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
from bootcamp.paths import ROOT
from bootcamp.scripts import jobs

TRAINED = {"model": "mlp", "steps": 6, "global_batch": 12, "optimizer": "sgd"}
# long enough to be told to end on the way; at ten times this rate rounding grows beyond 1e-5
TO_BE_STOPPED = {**TRAINED, "steps": 400, "lr": 0.005}
SECONDS = 180  # on a busy machine
# neither a traceback's lines nor a warning; the second are of the job's own programs
ERROR = re.compile(r"(?!\s|frame|raise|\[?[WI]\d).*([Ee]rror|joined|can't open|[Ss]ignal)")
OWN = re.compile(r"(\S*(\.py|slurm_script|python)|(\[\w+\]: )?[\w.]+(Error|Exception)): \S")


@dataclass(frozen=True)
class JobTask(ScriptTask):
    """Repair a broken job file; stopped: the job gets USR1, and must be queued again."""

    broken: jobs.BrokenJob | None = None
    stopped: bool = False

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

    def submit(self, cluster: slurm.Cluster, given: Path) -> SlurmJob:
        """Submit a job file, and send USR1 to the job if the task is about that."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in self.flags.items()]
        arguments += ["--timeout=5", "--save-every=1000"]
        # with a --time of two minutes Slurm itself sends USR1, too, from half a minute on
        job = cluster.sbatch(given, "--time=20", arguments=tuple(arguments))
        if self.stopped:
            with contextlib.suppress(TimeoutError, RuntimeError):  # `judge` says what is wrong
                job.wait(SECONDS, steps=1)
                job.signal("USR1", "--batch")
        return job

    def judge(self, job: SlurmJob) -> str:
        """Wait for the job's end, and say why it is right. Raises Wrong or SlurmError."""
        expected = f"COMPLETED, {2 if self.stopped else 4} ranks on 2 hosts"
        try:
            job.wait(SECONDS)
        except TimeoutError:
            job.cluster.run(f"scancel {job.id}")
            raise self.explain(job, expected, is_late=True) from None
        if not job.summary.startswith(expected):
            raise self.explain(job, expected)
        run = job.record
        if self.stopped and (job.restarts != 1 or not run.ranks[0]["first_step"]):
            raise self.explain(job, "a job that saved, was queued again, and went on")
        losses = equality.baseline(**self.flags).losses
        difference = max(abs(a - b) for a, b in zip(run.losses, losses, strict=True))
        if not difference < 1e-5:
            raise Wrong("the losses of the baseline", f"losses that differ by {difference:.1e}")
        went_on = ", told to end on the way, queued again" if self.stopped else ""
        return f"{expected}{went_on}, with the losses of the baseline."

    def explain(self, job: SlurmJob, expected: str, is_late: bool = False) -> Wrong:
        """Say what the fault means if the file still has it, and else how the job fails."""
        given, working = ((ROOT / path).read_text() for path in (job.script, self.solution_path()))
        faulty = set(self.broken.text.splitlines()) - set(working.splitlines())
        is_there = faulty & set(given.splitlines()) if faulty else "\ntrap " not in given
        first, *rest = job.summary.splitlines()
        telling = dict.fromkeys(line[:200] for line in rest if ERROR.match(line) or OWN.match(line))
        seen = "\n".join([first, *list(telling)[-4:]])
        if is_there and re.search(self.broken.seen, job.summary, re.S):
            return Wrong(expected, seen, self.broken.means, since=2)
        if is_late:
            late = f"Not judged: the check ended it after {SECONDS} s. Busy machine? Run it again."
            return NotTried(expected, f"{first}\n{late}")
        last = [line for line in telling if OWN.match(line)] or [first, *telling]
        return Wrong(expected, seen, f"Your file fails in another way: {last[-1]}")


def _make_task(broken: jobs.BrokenJob) -> JobTask:
    stopped = broken.of == "ddp_requeue"
    return JobTask(
        broken.name,
        task=f"Repair this job file, so that it trains on two hosts ({broken.of}.sbatch once).",
        hint=broken.asks,
        stronger=broken.cure,
        ranks=4,
        flags=TO_BE_STOPPED if stopped else TRAINED,
        broken=broken,
        stopped=stopped,
    )


TASKS = [_make_task(broken) for broken in jobs.read_broken_jobs().values() if broken.seen]
