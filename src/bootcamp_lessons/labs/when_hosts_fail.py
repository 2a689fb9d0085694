"""Lesson 09b's experiments: a job that must end early, an elastic run, and drills.

Where a machine can have neither hosts nor Slurm, they return what was recorded in
logs/reference/09b_when_hosts_fail/, and say so. To record it anew: BOOTCAMP_RECORD=1 python
tools/notebooks.py 09b.
"""

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bootcamp.experiments import replay
from bootcamp.files import read_json
from bootcamp.hosts import drills
from bootcamp.hosts.slurm import SlurmJob
from bootcamp.launcher.launch import Options
from bootcamp.paths import LOGS, REFERENCE, SRC
from bootcamp.records import rank_errors
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons.labs import host_drills
from bootcamp_lessons.labs.host_drills import SETTING, Outcome

RECORDS = REFERENCE / "09b_when_hosts_fail"
JOB, CHECK = "src/jobs/ddp_requeue.sbatch", "src/jobs/check_nodes.sbatch"
DISK = "/mnt"  # a folder on each host's own disk
STEPS = 400  # of the job that must end before it has done them
STACK_LINE = re.compile(r"\[?W\d{4}|Exception raised from|frame #|<omitting")
LOSS_STEP = 4  # at which the elastic run loses a host
# give a silent host up after 3 s in place of 15, and wait for no other longer than 1 s
IMPATIENT = {"rdzv_conf": "last_call_timeout=1,keep_alive_interval=1"}


class Lab(replay.RecordedCluster):
    """The lesson's experiments; the first that needs the cluster starts it."""

    def __init__(self):
        super().__init__(RECORDS.name, hosts=2)
        self.hosts = replay.RecordedRuns(RECORDS.name, needs="hosts")

    def __repr__(self) -> str:
        return f"{self.hosts}\n{super().__repr__()}"

    def nodes(self) -> None:
        """Print what a check of all hosts before a job says: host1's disk is full."""

        def check() -> dict:
            cluster, how = self.start(), {"on": "host1", "as_root": True}
            cluster.run(f"mount -t tmpfs -o size=1m small {DISK}", **how)
            job = cluster.sbatch(CHECK, arguments=(f"--disk={DISK}",))
            job.wait(60)
            cluster.run(f"umount {DISK}", **how)
            return {"output": f"host0$ sbatch {CHECK} --disk={DISK}\n{job.output}"}

        print(_replay(self, "nodes", check)["output"])

    def requeued(self) -> dict:
        """Send USR1 to a job, which saves, is queued again and goes on; see `describe_job`."""

        def train() -> dict:
            job = self.submit(save_every=10 * STEPS)
            job.wait(steps=1)
            job.signal("USR1", "--batch")
            job.wait()
            return describe_job(job)

        found = _replay(self, "requeued", train)
        print(found["output"])
        return found

    def submit(self, save_every: int) -> SlurmJob:
        """Submit the job that trains and is queued again."""
        flags = {**SETTING, "steps": STEPS, "save_every": save_every, "device": "cpu"}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        return self.start().sbatch(JOB, arguments=tuple(words))

    def elastic(self) -> dict:
        """Let an elastic run on two hosts lose one; see `_describe_attempts`."""
        return _replay(self.hosts, "elastic", _lose_a_host)

    def drill(self, name: str) -> Outcome:
        """Run one of host_drills.DRILLS."""
        found = _replay(self.hosts, f"drill_{name}", lambda: asdict(host_drills.run_drill(name)))
        return Outcome(**found)


def _replay(lab: replay.RecordedRuns, name: str, measure: Callable[[], dict]) -> dict:
    note = f"{lab.missing}: what was recorded elsewhere stands in ({name}). {lab.advice}"
    return replay.replay(RECORDS / f"{name}.json", measure, None if lab.ready else note)


def describe_job(job: SlurmJob) -> dict:
    """Describe a job that was queued again.

    output: of both attempts. first_step: at which the second began. again: how many steps were
    computed twice. apart: the largest difference from the losses of one process.
    """
    run = job.record
    steps = [row.step for row in Steps(run.folder).read_new()]  # each as often as it was computed
    return {
        "state": job.state,
        "restarts": job.restarts,
        "output": replay.hide_own_folders(_without_stacks(job.output)),
        "first_step": run.ranks[0].first_step,
        "again": len(steps) - len(set(steps)),
        "steps": len(set(steps)),
        "apart": host_drills.max_loss_difference(run),
    }


def _without_stacks(output: str) -> str:
    """Remove the C++ stacks that an agent writes if its store has ended first."""
    kept = [line for line in output.splitlines() if not STACK_LINE.match(line)]
    return "\n".join(line for line in kept if line.strip()) + "\n"


WAIT_FOR_LOSS = {
    "with run.step(step):": f"""while (world, step) == (2, {LOSS_STEP}):
    dist.all_reduce(torch.zeros(()))
    __import__("time").sleep(0.02)
with run.step(step):"""
}


def _lose_a_host() -> dict:
    script = variant(SRC / "snippets" / "ddp_elastic.py", "elastic_loses_a_host", WAIT_FOR_LOSS)
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS, prefix="elastic-") as place:
        file = Path(place) / "run.pt"
        saves = {"save": file, "resume": file, "save_every": 1, "micro_batch": 4}
        options = Options(max_restarts=2, fewest_hosts=1, torchrun=IMPATIENT)
        with drills.BackgroundRun(script, 2, hosts=2, options=options, **saves, **SETTING) as run:
            run.wait_for_step(LOSS_STEP - 1, ranks=2)
            lost_at = time.time()
            run.hosts[1].kill()
    return _describe_attempts(run.record, lost_at)


def _describe_attempts(run: Run, lost_at: float) -> dict:
    """Describe an elastic run's attempts; lost_at: when the host was lost, seconds since 1970."""
    rows, ranks = Steps(run.folder).read_new(), rank_errors.read_processes(run.folder)
    attempts = []
    for attempt in sorted({row.attempt for row in rows}):
        steps = [row.step for row in rows if row.attempt == attempt]
        hosts = [rank["host"] for rank in ranks if rank["attempt"] == attempt]
        share = SETTING["global_batch"] // len(hosts)
        row = {"attempt": attempt, "hosts": ", ".join(sorted(set(hosts))), "ranks": len(hosts)}
        row |= {"samples of a rank": share, "micro-batches": share // 4}
        attempts.append(row | {"steps": f"{min(steps)} to {max(steps)}"})
    ended = (run.folder / "summary.json").stat().st_mtime
    return {
        "attempts": attempts,
        "seconds": ended - lost_at,
        "apart": host_drills.max_loss_difference(run),
    }


def all_drills() -> Table:
    """Table all drills, as they were recorded."""
    kept = read_json(RECORDS / "drills.json")["drills"]
    return host_drills.table([Outcome(**row) for row in kept])
