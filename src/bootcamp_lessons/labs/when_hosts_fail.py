"""Lesson 09b: its cluster, its job that must end early, its elastic run, and its drills.

Where a machine can have neither hosts nor Slurm, each of them answers with what was recorded in
logs/reference/09b_when_hosts_fail/, and says so. To record it anew: BOOTCAMP_RECORD=1 python
tools/notebooks.py 09b, and make drills for the table of all drills.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bootcamp.experiments import replay
from bootcamp.files import read_json, write_json
from bootcamp.hosts import drills
from bootcamp.hosts.slurm import SlurmJob
from bootcamp.launcher.launch import Options
from bootcamp.paths import LOGS, REFERENCE, SRC
from bootcamp.records import places
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons.labs import host_drills
from bootcamp_lessons.labs.host_drills import SETTING, Outcome

RECORDS = REFERENCE / "09b_when_hosts_fail"
JOB, CHECK = "src/jobs/ddp_requeue.sbatch", "src/jobs/check_nodes.sbatch"
DISK = "/mnt"  # a folder on each host's own disk
STEPS = 400  # of the job that must end before it has done them
OF_STACKS = re.compile(r"\[?W\d{4}|Exception raised from|frame #|<omitting")
LOST_AT = 4  # the step at which the elastic run loses a host
# a silent host is given up after 3 s in place of 15; nobody else is waited for longer than 1 s
IMPATIENT = {"rdzv_conf": "last_call_timeout=1,keep_alive_interval=1"}


class Lab(replay.Cluster):
    """The lesson's experiments; the first that needs the cluster starts it."""

    def __init__(self):
        super().__init__(RECORDS.name, hosts=2)
        self.hosts = replay.Lab(RECORDS.name, needs="hosts")

    def __repr__(self) -> str:
        return f"{self.hosts}\n{super().__repr__()}"

    def nodes(self) -> None:
        """Check all hosts before a job, and print what the check says: host1's disk is full."""

        def check() -> dict:
            cluster, how = self.start(), {"on": "host1", "as_root": True, "quiet": True}
            cluster.run(f"mount -t tmpfs -o size=1m small {DISK}", **how)
            job = cluster.sbatch(CHECK, arguments=(f"--disk={DISK}",), quiet=True)
            job.wait(60)
            cluster.run(f"umount {DISK}", **how)
            return {"output": f"host0$ sbatch {CHECK} --disk={DISK}\n{job.output}"}

        print(_measured(self, "nodes", check)["output"])

    def requeued(self) -> dict:
        """A job that gets USR1, saves, is queued again and goes on: see `_of_job`."""

        def train() -> dict:
            job = self._job(save_every=10 * STEPS)
            job.wait(steps=1)
            job.signal("USR1", "--batch")
            job.wait()
            return _of_job(job)

        found = _measured(self, "requeued", train)
        print(found["output"])
        return found

    def killed_while_it_saves(self) -> dict:
        """A job that gets KILL in the middle of a save, and is queued again: see `_of_job`.

        It saves after every step, so at most the steps since the last whole save come again.
        """
        job = self._job(save_every=1)
        job.wait(steps=5)
        deadline = time.monotonic() + 60
        while not list(LOGS.glob(f".{job.folder.name}.pt.*.part")):  # until a save is renamed
            if time.monotonic() > deadline:
                raise TimeoutError("no save has begun")
        job.signal("KILL", "--full")
        job.wait()
        self.start().run(f"scontrol requeue {job.id}", quiet=True)
        job.wait()
        return _of_job(job)

    def _job(self, save_every: int) -> SlurmJob:
        flags = {**SETTING, "steps": STEPS, "save_every": save_every, "device": "cpu"}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        return self.start().sbatch(JOB, arguments=tuple(words))

    def elastic(self) -> dict:
        """An elastic run on two hosts that loses one: steps by attempt, seconds, losses."""
        return _measured(self.hosts, "elastic", _lose_a_host)

    def drill(self, name: str) -> Outcome:
        """One of host_drills.DRILLS, broken and recovered here."""
        found = _measured(self.hosts, f"drill_{name}", lambda: asdict(host_drills.drill(name)))
        return Outcome(**found)


def _measured(lab: replay.Lab, name: str, measure: Callable[[], dict]) -> dict:
    note = f"{lab.missing}: what was recorded elsewhere stands in ({name}). {lab.advice}"
    return replay.replay(RECORDS / f"{name}.json", measure, None if lab.ready else note)


def _of_job(job: SlurmJob) -> dict:
    """What the lesson shows of a job that was queued again.

    output: what it printed in both attempts. first_step: at which the second began. again: steps
    that were computed twice. apart: the largest difference from the losses of one process.
    """
    run = job.record
    steps = [row["step"] for row in _all_steps(run)]
    return {
        "state": job.state,
        "restarts": job.restarts,
        "output": replay.without_own_folders(_without_stacks(job.output)),
        "first_step": run.ranks[0].first_step,
        "again": len(steps) - len(set(steps)),
        "steps": len(set(steps)),
        "apart": host_drills.apart(run),
    }


def _without_stacks(output: str) -> str:
    """A job's output without the C++ stacks that an agent writes whose store has ended first."""
    kept = [line for line in output.splitlines() if not OF_STACKS.match(line)]
    return "\n".join(line for line in kept if line.strip()) + "\n"


def _lose_a_host() -> dict:
    script = variant(SRC / "snippets" / "ddp_elastic.py", "elastic_loses_a_host", HELD)
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS, prefix="elastic-") as place:
        file = Path(place) / "run.pt"
        saves = {"save": file, "resume": file, "save_every": 1, "micro_batch": 4}
        options = Options(max_restarts=2, nodes="1:2", torchrun=IMPATIENT)
        with drills.running(script, 2, hosts=2, options=options, **saves, **SETTING) as run:
            run.wait_for_step(LOST_AT - 1, world=2)
            lost = time.time()
            run.hosts[1].kill()
    return _of_attempts(run.ended, lost)


HELD = {
    "with run.step(step):": f"""while (world, step) == (2, {LOST_AT}):
    dist.all_reduce(torch.zeros(()))
    __import__("time").sleep(0.02)
with run.step(step):"""
}


def _of_attempts(run: Run, lost: float) -> dict:
    """What the lesson shows of an elastic run; lost: when the host was, in seconds since 1970."""
    rows, ranks = _all_steps(run), places.ranks(run.folder)
    attempts = []
    for attempt in sorted({row["attempt"] for row in rows}):
        steps = [row["step"] for row in rows if row["attempt"] == attempt]
        hosts = [rank["host"] for rank in ranks if rank["attempt"] == attempt]
        share = SETTING["global_batch"] // len(hosts)
        row = {"attempt": attempt, "hosts": ", ".join(sorted(set(hosts))), "ranks": len(hosts)}
        row |= {"samples of a rank": share, "micro-batches": share // 4}
        attempts.append(row | {"steps": f"{min(steps)} to {max(steps)}"})
    ended = (run.folder / "summary.json").stat().st_mtime
    return {"attempts": attempts, "seconds": ended - lost, "apart": host_drills.apart(run)}


def _all_steps(run: Run) -> list[dict]:
    """A row for each step as often as it was done."""
    return [json.loads(line) for line in (run.folder / "steps.jsonl").read_text().splitlines()]


def all_drills() -> Table:
    """Every drill, as `make drills` ran them last on this machine or, before that, elsewhere."""
    here, elsewhere = LOGS / "host_drills.json", RECORDS / "drills.json"
    kept = read_json(here) or read_json(elsewhere)
    return host_drills.table([Outcome(**row) for row in kept["drills"]])


def keep_drills(outcomes: list[Outcome], path: Path) -> None:
    """Write what came of drills where `all_drills` finds it."""
    write_json(path, {"drills": [asdict(one) for one in outcomes]})
