"""A real Slurm on hosts made on this machine, for a cell or a test:

    with slurm.cluster(hosts=2) as cluster:
        job = cluster.sbatch("src/jobs/ddp_torchrun.sbatch")
        job.wait()

The daemons of Debian's packages slurm-wlm and munge, one slurmd for each simulated host, are up
in a second; slurm_daemons.py holds them. Commands, job files and their output are those of any
other cluster, and the machine's own folders are the disk that all hosts share. When the cluster
stops, or this process ends or is killed, everything in it ends, and nothing stays on any disk.

BOOTCAMP_WITHOUT=slurm in the environment hides it, to see what a lesson shows without it."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.hosts import slurm_conf, slurm_daemons
from bootcamp.launcher import simulated_hosts
from bootcamp.paths import LOGS, ROOT
from bootcamp.records import runs
from bootcamp.records.steps import read_steps

DAEMONS = ("slurmctld", "slurmd", "munged")
NOT_INHERITED = ("SLURM", "SBATCH", "SRUN", "SALLOC")  # of a job that this process may be in
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


class SlurmError(Exception):
    """A cluster that can't be had, or a command of it that failed. Its text says why."""


def why_not() -> str | None:
    """Why this machine can't have a cluster, None if it can: starts one and stops it."""
    try:
        start(hosts=1).stop()
    except SlurmError as error:
        return str(error)
    return None


@contextlib.contextmanager
def cluster(hosts: int = 2, **settings):
    """A cluster for the length of a `with`; see `start`."""
    started = start(hosts, **settings)
    try:
        yield started
    finally:
        started.stop()


def start(
    hosts: int = 2, gpus: int = 0, cpus: int = 4, link: str | None = None, quiet: bool = False
) -> "Cluster":
    """Start a cluster; returns when every host is idle. It lives until `stop`.

    hosts: how many, named host0, host1, ...; the controller runs on the first, and so do commands.
    gpus, cpus: of each host, as Slurm hands them out. They need not exist: all hosts share this
    machine's cores, and no rank finds a GPU behind the ones that are made up.
    link: the rate of each host's link, such as "200mbit"; None is unlimited.
    quiet: print neither the commands nor what they say.

    Raises SlurmError with one sentence if this machine can't have one.
    """
    if machine.hidden("slurm"):
        raise SlurmError("BOOTCAMP_WITHOUT hides it in this environment")
    if missing := [name for name in DAEMONS if not shutil.which(name, path=simulated_hosts.SEARCH)]:
        raise SlurmError(
            f"there is no {' and no '.join(missing)}: make cluster installs what is missing, as "
            "root on Debian or Ubuntu (apt install --no-install-recommends slurm-wlm munge)"
        )
    if hosts < 1 or cpus < 1 or gpus < 0:
        raise ValueError(f"hosts={hosts}, cpus={cpus}, gpus={gpus}: expected at least 1, 1 and 0")
    LOGS.mkdir(parents=True, exist_ok=True)  # jobs print there
    settings = {"hosts": hosts, "gpus": gpus, "cpus": cpus, "link": link}
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", slurm_daemons.__file__, json.dumps(settings)]
    holder = subprocess.Popen(
        [*command, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # the notebook's stop button is not meant for it
    )
    theirs.close()
    made = Cluster(control, holder, {simulated_hosts.name(host): 0 for host in range(hosts)}, quiet)
    try:
        answer = control.recv(10_000)
        if answer != slurm_daemons.READY:
            raise SlurmError(answer.decode() or "the process that holds the cluster died")
        made.find_hosts()
    except BaseException:
        made.stop()
        raise
    return made


@dataclass(frozen=True)
class Done:
    """A command that has ended: its line in a terminal, its exit code, what it printed."""

    line: str
    code: int
    output: str

    def __repr__(self) -> str:
        return f"exit code {self.code}"


@dataclass
class Cluster:
    """A running Slurm; `start` makes it. hosts: their names, each with a process on it."""

    control: socket.socket
    holder: subprocess.Popen
    hosts: dict[str, int]
    quiet: bool = False

    def run(
        self,
        command: str | list[str],
        *,
        on: str = "host0",
        seconds: float = 120,
        quiet: bool | None = None,
        env: dict[str, str] | None = None,
        raises: bool = True,
        as_root: bool = False,
    ) -> Done:
        """Run a command on a host, print its line and what it says, and wait for its end.

        command: as typed into a terminal; a list of words is quoted as a terminal needs it.
        on: the host. seconds: how long it may take. env: variables besides this process's own.
        raises: whether an exit code other than 0 is an error. as_root: of the host, for who is not
        root of this machine: such as to mount something there.

        Raises SlurmError, TimeoutError.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        quiet = self.quiet if quiet is None else quiet
        if not quiet:
            print(f"{on}$ {line}", flush=True)
        if on not in self.hosts:
            raise ValueError(f"on={on!r}: the hosts are {', '.join(self.hosts)}")
        with tempfile.TemporaryFile() as out:
            program = subprocess.Popen(
                [
                    *self._enter(on, as_root),
                    "/bin/sh",
                    "-c",
                    f"cd {shlex.quote(str(ROOT))}; {line}",
                ],
                env={**environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                code = self._wait(program, line, out, seconds, quiet)
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
            if self.holder.poll() is not None:
                raise SlurmError("the cluster has ended")
            out.seek(0)
            done = Done(line, code, out.read().decode(errors="replace"))
        if code and raises:
            raise SlurmError(f"{line}: exit code {code}\n{done.output.strip()[-2000:]}")
        return done

    def sbatch(self, path: Path | str, *options: str, arguments: tuple = (), **how) -> "SlurmJob":
        """Hand in a job file, and return the job without waiting for it.

        options: of sbatch, such as "--partition=spare". arguments: the job file's own. Output that
        the file gives a relative name is in this process's folder for records.
        """
        path = Path(path)
        path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        done = self.run(["sbatch", *options, str(path), *map(str, arguments)], **how)
        return SlurmJob(
            self, int(re.search(r"Submitted batch job (\d+)", done.output)[1]), str(path)
        )

    def stop(self) -> None:
        """End the cluster and everything in it. Nothing happens if it has ended already."""
        self.control.close()
        try:
            self.holder.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()

    def _wait(self, program: subprocess.Popen, line: str, out, seconds: float, quiet: bool) -> int:
        """The exit code; what the program says is shown as it comes. Raises TimeoutError."""
        deadline, seen, code = time.monotonic() + seconds, 0, None
        while code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = program.wait(POLL_SECONDS)
            if not quiet:
                text = os.pread(out.fileno(), 1 << 20, seen)
                seen += len(text)
                print(text.decode(errors="replace"), end="", flush=True)
            if code is None and time.monotonic() > deadline:
                raise TimeoutError(f"{line}: no end after {seconds:g} s")
        return code

    def find_hosts(self) -> None:
        """Find the processes that sleep in the hosts, by their names in the cluster's namespace."""
        inside = os.readlink(f"/proc/{self.holder.pid}/ns/pid_for_children")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                if os.readlink(f"/proc/{pid}/ns/pid") == inside:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    self.hosts |= {name: int(pid)} if name in self.hosts else {}

    def _enter(self, host: str, as_root: bool) -> list[str]:
        """What begins a command line to run it on a host, as this user or as root of the host."""
        own = ["--user", "--preserve-credentials"] if os.getuid() else []
        kinds = ["--mount", "--net", "--uts", "--ipc", "--pid"]
        enter = ["nsenter", "--target", str(self.hosts[host]), *own, *kinds]
        if own and not as_root:
            enter += ["unshare", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
        return enter

    def __repr__(self) -> str:
        state = "running" if self.holder.poll() is None else "stopped"
        return f"Slurm on {', '.join(self.hosts)}: {state}"


@dataclass(frozen=True)
class SlurmJob:
    """A job, or the jobs of an array. id: its number. script: its job file."""

    cluster: Cluster
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

    def wait(self, seconds: float = 120, steps: int | None = None) -> str:
        """Wait for its end, or until its record has so many training steps; returns its state.

        Raises TimeoutError with the end of its output; RuntimeError if it ended without the steps.
        """
        deadline, folder = time.monotonic() + seconds, self.folder
        while True:
            ended = all(map(_has_ended, self.rows()))
            if ended if steps is None else len(read_steps(folder)) >= steps:
                return self.state
            if ended:
                raise RuntimeError(f"{self} ended without {steps} step(s):\n{self.output[-2000:]}")
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


def environment() -> dict[str, str]:
    """What commands and jobs get of this process's environment, and where this Python is.

    If this process is in a job of another Slurm, that one's variables stay outside. Job files say
    where their output goes as on any cluster, by #SBATCH --output; Slurm takes SBATCH_OUTPUT
    instead where it is set, and so this course's output comes to its records.
    """
    own = {name: text for name, text in os.environ.items() if not name.startswith(NOT_INHERITED)}
    programs = [str(slurm_conf.PROGRAMS), os.path.dirname(sys.executable), simulated_hosts.SEARCH]
    path = os.pathsep.join(programs)
    return {**own, "PATH": path, "SBATCH_OUTPUT": str(LOGS / "%x-%j.out")}
