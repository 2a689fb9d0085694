"""Run a real Slurm on hosts that this machine simulates, and submit jobs to it:

    with slurm.Cluster(hosts=2) as cluster:
        job = cluster.sbatch("src/jobs/ddp_torchrun.sbatch")
        job.wait()

slurm_daemons.py runs the daemons, of Debian's packages slurm-wlm and munge. Commands, job files and
output are as on any other cluster, and all hosts share this machine's folders. When the cluster
stops, or this process ends or is killed, all daemons and jobs end.

BOOTCAMP_WITHOUT=slurm in the environment hides it, to see what a lesson shows without it.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.hosts import slurm_daemons
from bootcamp.launcher import simulated_hosts
from bootcamp.paths import LOGS, ROOT, shown
from bootcamp.records import runs
from bootcamp.records.steps import read_steps

DAEMONS = ("slurmctld", "slurmd", "munged")
# prefixes of the variables that an outer Slurm job sets
OUTER_JOB_PREFIXES = ("SLURM", "SBATCH", "SRUN", "SALLOC")
# states of squeue(1) that a job does not leave; the second, only if it is not to be requeued
FINAL_STATES = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|OUT_OF_MEMORY|TIMEOUT")
REQUEUED_STATES = ("NODE_FAIL", "PREEMPTED")
POLL_SECONDS = 0.25  # a look takes 0.03 s of a core
SECONDS_TO_END = 10


class SlurmError(Exception):
    """The cluster could not start, or a command in it failed; the text says why."""


class Cluster(contextlib.AbstractContextManager):
    """A running Slurm cluster of host0, host1, ...; the controller runs on host0.

    gpus, cpus: of each host, as Slurm counts them; they need not exist, unless each task `binds`
    to cores of its own. Raises SlurmError unless every host is idle soon.
    """

    def __init__(self, hosts: int = 2, gpus: int = 0, cpus: int = 4, binds: bool = False):
        if machine.is_hidden("slurm"):
            raise SlurmError("BOOTCAMP_WITHOUT hides it in this environment")
        where = simulated_hosts.SEARCH
        if missing := [name for name in DAEMONS if not shutil.which(name, path=where)]:
            raise SlurmError(
                f"there is no {' and no '.join(missing)}: make cluster installs what is missing, "
                "as root on Debian or Ubuntu (apt install --no-install-recommends slurm-wlm munge)"
            )
        LOGS.mkdir(parents=True, exist_ok=True)  # jobs print there
        numbers = map(str, (hosts, cpus, gpus, int(binds)))
        command = [sys.executable, "-P", slurm_daemons.__file__, *numbers]
        how = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        # the notebook's stop button is not meant for the new session
        self.holder = subprocess.Popen(command, text=True, start_new_session=True, **how)
        try:
            if not any(line == slurm_daemons.READY for line in self.holder.stdout):
                error = self.holder.stderr.read().strip()
                raise SlurmError(error or "the process that holds the cluster died")
            inside = os.readlink(f"/proc/{self.holder.pid}/ns/pid_for_children")
            found = {name: pid for pid, name in simulated_hosts.find_processes(inside).items()}
            names = map(simulated_hosts.name, range(hosts))
            # the process that keeps a host's namespaces alive, by the number that it has here
            self.hosts = {name: found[name] for name in names}
        except BaseException:
            self.stop()
            raise

    def run(self, command, *, on="host0", seconds=120, env=None, raises=True, as_root=False):
        """Run a command on a host to its end; `stdout` of its CompletedProcess has errors too.

        command: as typed into a terminal; words are quoted for it. env: added to this process's.
        raises: whether an exit code other than 0 does. as_root: as the host's root, to mount say.
        Raises SlurmError, TimeoutError; ValueError for an unknown host.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        if on not in self.hosts:
            raise ValueError(f"on={on!r}: the hosts are {', '.join(self.hosts)}")
        shell = ["/bin/sh", "-c", f"cd {shlex.quote(str(ROOT))}; {line}"]
        with tempfile.TemporaryFile() as out:
            how = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            how |= {"env": make_environment() | (env or {}), "start_new_session": True}
            program = subprocess.Popen(self._make_host_prefix(on, as_root) + shell, **how)
            try:
                code = program.wait(seconds)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{line}: no end after {seconds:g} s") from None
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
            out.seek(0)
            output = out.read().decode(errors="replace")
        if self.holder.poll() is not None:
            raise SlurmError("the cluster has ended")
        if code and raises:
            raise SlurmError(f"{line}: exit code {code}\n{output.strip()[-2000:]}")
        return subprocess.CompletedProcess(line, code, output)

    def _make_host_prefix(self, host: str, as_root: bool) -> list[str]:
        """Return the words before a command that run it on a host, as this user or as its root."""
        own = ["--user", "--preserve-credentials"] if os.getuid() else []
        kinds = ["--mount", "--net", "--uts", "--ipc", "--pid"]
        enter = ["nsenter", "--target", str(self.hosts[host]), *own, *kinds]
        if own and not as_root:
            enter += ["unshare", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
        return enter

    def sbatch(
        self, path: Path | str, *options: str, arguments: tuple = (), env: dict | None = None
    ) -> "SlurmJob":
        """Submit a job file; return its job at once. options: of sbatch. arguments: of the file."""
        script = shown(path)
        done = self.run(["sbatch", *options, script, *map(str, arguments)], env=env)
        number = re.search(r"Submitted batch job (\d+)", done.stdout)[1]
        return SlurmJob(self, int(number), script)

    def stop(self) -> None:
        """End the cluster and everything in it. Nothing happens if it has ended already."""
        if self.holder.stdin.closed:
            return
        try:
            self.holder.communicate("end", timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.communicate()

    def __exit__(self, *_) -> None:
        self.stop()


@dataclass(frozen=True)
class SlurmJob:
    """A job, or the jobs of an array. id: its number. script: its job file."""

    cluster: Cluster
    id: int
    script: str

    def read_rows(self) -> list[dict[str, str]]:
        """Return the job's fields, named as by `scontrol show job`; an array has several rows."""
        lines = self.cluster.run(f"scontrol --oneliner show job {self.id}").stdout.splitlines()
        fields = re.compile(r"(\S+?)=(.*?)(?= \S+?=|$)")  # a value may have blanks, as in a path
        pairs = [fields.findall(line) for line in lines if line.startswith("JobId=")]
        return sorted(map(dict, pairs), key=lambda row: row.get("ArrayTaskId", "").zfill(9))

    @property
    def state(self) -> str:
        """The state, such as RUNNING; for an array all its jobs' states, joined by "+"."""
        return "+".join(sorted({row["JobState"] for row in self.read_rows()}))

    @property
    def restarts(self) -> int:
        return max(int(row["Restarts"]) for row in self.read_rows())

    @property
    def output(self) -> str:
        """The text that it has printed so far."""
        logs = dict.fromkeys(Path(row["StdOut"]) for row in self.read_rows())
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    @property
    def folder(self) -> Path:
        """The folder of its ranks' record, as the course's job files name it."""
        return LOGS / f"{self.read_rows()[0]['JobName']}-{self.id}"

    @property
    def record(self) -> runs.Run | None:
        """The record of its ranks, None if they left none."""
        return runs.load(self.folder) if (self.folder / "summary.json").exists() else None

    @property
    def summary(self) -> str:
        """Its state, the ranks and hosts of its record, and its output, in this order."""
        where = "no record"
        if run := self.record:
            hosts = run.config.get("hosts")
            where = f"{run.config.get('processes')} ranks on {hosts} host{'s' * (hosts != 1)}"
        return f"{self.state}, {where}\n{self.output}"

    def wait(self, seconds: float = 120, steps: int | None = None) -> str:
        """Wait until the job ends, or has recorded `steps` training steps; return its state.

        Raises TimeoutError after `seconds`, RuntimeError if it ended with fewer steps.
        """
        deadline, folder = time.monotonic() + seconds, self.folder
        while True:
            ended = all(map(_has_ended, self.read_rows()))
            if ended if steps is None else len(read_steps(folder)) >= steps:
                return self.state
            if ended:
                raise RuntimeError(f"{self} ended without {steps} step(s):\n{self.output[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self}: not yet after {seconds:g} s\n{self.output[-2000:]}")
            time.sleep(POLL_SECONDS)

    def signal(self, name: str, *options: str) -> None:
        """Send it a signal. "--batch" means the job file's shell alone, "--full" all of it."""
        self.cluster.run(["scancel", f"--signal={name}", *options, str(self.id)])

    def __repr__(self) -> str:
        return f"job {self.id} ({self.script}): {self.state}"


def why_not() -> str | None:
    """Say why this machine can't have a cluster, None if it can: starts one and stops it."""
    try:
        Cluster(hosts=1).stop()
    except SlurmError as error:
        return str(error)
    return None


def make_environment() -> dict[str, str]:
    """Return the environment of commands and jobs: this process's, with its Python in PATH.

    Without those of an outer Slurm job; SBATCH_OUTPUT sends all output to this course's records.
    """
    programs = (slurm_daemons.PROGRAMS, Path(sys.executable).parent, simulated_hosts.SEARCH)
    env = {**os.environ, "PATH": os.pathsep.join(map(str, programs))}
    own = {name: text for name, text in env.items() if not name.startswith(OUTER_JOB_PREFIXES)}
    return {**own, "SBATCH_OUTPUT": str(LOGS / "%x-%j.out")}


def _has_ended(row: dict[str, str]) -> bool:
    if row["JobState"] in REQUEUED_STATES:
        return row["Requeue"] == "0"
    return FINAL_STATES.fullmatch(row["JobState"]) is not None
