"""Commands and jobs on a Slurm cluster that this machine pretends to be, or their records.

    lab = recorded_cluster.Lab("09_several_hosts", hosts=2)
    lab.run("idle", "sinfo")
    job = lab.sbatch("ddp-srun", "src/jobs/ddp_srun.sbatch", "--steps", 6)
    job.wait()
    lab.stop()

Where Slurm can be started (launcher/slurm.py), the first line that is asked for starts it.
Elsewhere each line shows what it said when it was recorded, from logs/reference/<lesson>/. To
record anew: BOOTCAMP_RECORD=1, as recorded.py says. Standard library only.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bootcamp.experiments import recorded
from bootcamp.launcher import slurm
from bootcamp.paths import LOGS, REFERENCE, shown
from bootcamp.records.runs import Run

SAID = "said.json"
# torchrun warns of the first if it is not set, torch's sockets of hosts without a DNS
CALM = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@dataclass(frozen=True)
class Said:
    """What came of a command or a job: its exit code or state, its output, its training's runs."""

    end: int | str
    output: str
    runs: tuple[Run, ...] = ()

    def __repr__(self) -> str:
        return f"exit code {self.end}" if isinstance(self.end, int) else self.end


@dataclass(frozen=True)
class Job:
    """A job that has been handed in. live: its slurm.Job, None where a record stands in."""

    live: slurm.Job | None
    told: Callable[[float], Said]

    def wait(self, seconds: float = 240) -> Said:
        """What came of it; waits for its end. Raises TimeoutError."""
        return self.told(seconds)


class Lab:
    """One lesson's cluster and its records. ready: whether this machine can have the cluster."""

    def __init__(self, lesson: str, **settings):
        """lesson: where its records are. settings: of slurm.start, such as hosts=2."""
        self.lesson, self.settings = lesson, settings
        self.why_not = slurm.why_not()
        self.ready = self.why_not is None
        self.folder = LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{lesson}-{os.getpid()}"
        self.cluster: slurm.Cluster | None = None

    def __repr__(self) -> str:
        if self.ready:
            return "Slurm can be started here: every command and job of this lesson is a real one."
        return f"Slurm can't be started here: records stand in. (The reason: {self.why_not}.)"

    def started(self) -> slurm.Cluster:
        """The cluster, started now if it has not been. Raises SlurmError."""
        if self.cluster is None:
            self.folder.mkdir(parents=True)
            self.cluster = slurm.start(**self.settings, quiet=True)
        return self.cluster

    def stop(self) -> None:
        """End the cluster and everything in it."""
        if self.cluster is not None:
            self.cluster.stop()
            self.cluster = None

    def run(self, record: str, line: str, on: str = "host0", **how) -> Said:
        """Run a command on a host; its line and what it says are shown. See `on_each`."""
        return self.on_each(record, {on: line}, **how)[on]

    def on_each(self, record: str, lines: dict[str, str], **how) -> dict[str, Said]:
        """A command on each of several hosts, all at once: {host: what came of it}.

        What they say is shown one by one, and an exit code that is not 0 is no error. how: of
        Cluster.run.
        """
        if self.ready:
            found = self._run_on_each(lines, how)
            self._keep(record, found)
        else:
            found = self._recorded(record)
        for host, line in lines.items():
            print(f"{host}$ {line}\n{found[host].output}", end="")
        return found

    def _run_on_each(self, lines: dict[str, str], how: dict) -> dict[str, Said]:
        cluster = self.started()
        how = {"env": self._env(), "raises": False, **how}
        with ThreadPoolExecutor() as at_once:
            begun = {
                host: at_once.submit(cluster.run, line, on=host, **how)
                for host, line in lines.items()
            }
            done = {host: each.result() for host, each in begun.items()}
        return {host: Said(each.code, each.output) for host, each in done.items()}

    def sbatch(self, record: str, path: str, *arguments, options: tuple[str, ...] = ()) -> Job:
        """Hand in a job file; the line is shown. arguments: the job file's. options: of sbatch."""
        words = [str(word) for word in ("sbatch", *options, path, *arguments)]
        print(f"host0$ {' '.join(words)}")
        if not self.ready:
            return Job(None, lambda _: self._recorded(record)["job"])
        job = self.started().sbatch(path, *options, arguments=arguments, env=self._env())

        def told(seconds: float) -> Said:
            state = job.wait(seconds)
            runs = sorted(self.folder.glob(f"*-{job.id}*/summary.json"))
            found = Said(state, job.output, tuple(Run(summary.parent) for summary in runs))
            self._keep(record, {"job": found})
            return found

        return Job(job, told)

    def _env(self) -> dict[str, str]:
        """Jobs write into a folder of this lab's: their numbers begin at 1 in each cluster."""
        output = str(self.folder / "%x-%j.out")
        return {**CALM, "BOOTCAMP_LOGS": str(self.folder), "SBATCH_OUTPUT": output}

    def _keep(self, record: str, found: dict[str, Said]) -> None:
        """Make this record, where the environment asks for records."""
        if not os.environ.get("BOOTCAMP_RECORD"):
            return
        folder = REFERENCE / self.lesson / record
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rows = {}
        for name, said in found.items():
            for number, run in enumerate(said.runs):
                recorded.keep(run.folder, folder / f"run-{number}")
            output = recorded.without_own_folders(said.output.replace(str(self.folder), "logs"))
            rows[name] = {"end": said.end, "output": output}
        (folder / SAID).write_text(json.dumps(rows, indent=1) + "\n")

    def _recorded(self, record: str) -> dict[str, Said]:
        folder = REFERENCE / self.lesson / record
        if not (folder / SAID).exists():
            raise FileNotFoundError(
                f"{shown(folder)}: there is no such record. Record the lesson's runs on a machine "
                "with Slurm, as the docstring of experiments/recorded.py says."
            )
        print(f"(recorded: {shown(folder)})")
        runs = tuple(Run(path) for path in sorted(folder.glob("run-*")))
        rows = json.loads((folder / SAID).read_text())
        return {name: Said(row["end"], row["output"], runs) for name, row in rows.items()}
