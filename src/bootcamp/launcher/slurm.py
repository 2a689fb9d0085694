"""A real Slurm on hosts made on this machine, for a cell or a test:

    with slurm.cluster(hosts=2) as cluster:
        job = cluster.sbatch("src/jobs/ddp_torchrun.sbatch")
        job.wait()

The daemons of Debian's packages slurm-wlm and munge, one slurmd for each simulated host, are up
in a second. slurm_holder.py holds them and runs each command in its host; slurm_site.py has the
slurm.conf. Commands, job files and their output are those of any other cluster, and the machine's
own folders are the disk that all hosts share. When the cluster stops, when this process ends, or
is killed, everything in it ends, and nothing of it stays on any disk.

BOOTCAMP_WITHOUT=slurm in the environment hides it, to see what a lesson shows without it. Standard
library only.
"""

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import simulated_hosts, slurm_holder, slurm_site
from bootcamp.launcher.slurm_job import Job
from bootcamp.paths import LOGS, ROOT

DAEMONS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge"}
NOT_INHERITED = ("SLURM", "SBATCH", "SRUN", "SALLOC")  # of a job that this process may be in


class SlurmError(Exception):
    """A cluster that can't be had, or a command of it that failed. Its text says why."""


def why_not() -> str | None:
    """Why this machine can't have a cluster, None if it can: starts one and stops it."""
    if machine.hidden("slurm"):
        return "BOOTCAMP_WITHOUT hides it in this environment"
    if lacks := missing():
        return (
            f"there is no {' and no '.join(lacks)}: make cluster installs what is missing, as root "
            f"on Debian or Ubuntu (apt install --no-install-recommends slurm-wlm munge)"
        )
    try:
        start(hosts=1).stop()
    except SlurmError as error:
        return str(error)
    return None


def missing() -> list[str]:
    """Those of the daemons that are not installed."""
    return [name for name in DAEMONS if not shutil.which(name, path=simulated_hosts.SEARCH)]


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
        raise SlurmError("BOOTCAMP_WITHOUT hides Slurm in this environment")
    if lacks := missing():
        raise SlurmError(f"there is no {' and no '.join(lacks)}: run make cluster first")
    if hosts < 1 or cpus < 1 or gpus < 0:
        raise ValueError(f"hosts={hosts}, cpus={cpus}, gpus={gpus}: expected at least 1, 1 and 0")
    LOGS.mkdir(parents=True, exist_ok=True)  # jobs print there
    settings = {"hosts": hosts, "gpus": gpus, "cpus": cpus, "link": link}
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", slurm_holder.__file__, json.dumps(settings)]
    holder = subprocess.Popen(
        [*command, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # the notebook's stop button is not meant for it
    )
    theirs.close()
    made = Cluster(control, holder, [simulated_hosts.name(host) for host in range(hosts)], quiet)
    try:
        answer = json.loads(control.recv(slurm_holder.LONGEST_MESSAGE) or "{}")
    except BaseException:
        made.stop()
        raise
    if "ready" not in answer:
        made.stop()
        raise SlurmError(answer.get("error", "the process that holds the cluster died"))
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
    """A running Slurm; `start` makes it. hosts: their names."""

    control: socket.socket
    holder: subprocess.Popen
    hosts: list[str]
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
        with tempfile.TemporaryFile() as out:
            program = _Program(self, line, on, out, env or {}, as_root)
            code = self._wait(program, out, seconds, quiet)
            out.seek(0)
            done = Done(line, code, out.read().decode(errors="replace"))
        if code and raises:
            raise SlurmError(f"{line}: exit code {code}\n{done.output.strip()[-2000:]}")
        return done

    def srun(self, *arguments: str, **how) -> Done:
        """srun with these arguments; see `run`."""
        return self.run(["srun", *arguments], **how)

    def sbatch(self, path: Path | str, *options: str, arguments: tuple = (), **how) -> Job:
        """Hand in a job file, and return the job without waiting for it.

        options: of sbatch, such as "--partition=spare". arguments: the job file's own. Output that
        the file gives a relative name is in this process's folder for records.
        """
        path = Path(path)
        path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        done = self.run(["sbatch", *options, str(path), *map(str, arguments)], **how)
        return Job(self, int(re.search(r"Submitted batch job (\d+)", done.output)[1]), str(path))

    def stop(self) -> None:
        """End the cluster and everything in it. Nothing happens if it has ended already."""
        self.control.close()
        try:
            self.holder.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()

    def _wait(self, program: "_Program", out, seconds: float, quiet: bool) -> int:
        """The exit code; what the program says is shown as it comes."""
        deadline, seen = time.monotonic() + seconds, 0
        try:
            while True:
                code = program.exit_code(wait=0.1)
                if not quiet:
                    text = os.pread(out.fileno(), 1 << 20, seen)
                    seen += len(text)
                    print(text.decode(errors="replace"), end="", flush=True)
                if code is not None:
                    return code
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{program.line}: no end after {seconds:g} s")
        finally:
            program.end()

    def __repr__(self) -> str:
        state = "running" if self.holder.poll() is None else "stopped"
        return f"Slurm on {', '.join(self.hosts)}: {state}"


class _Program:
    """A program that the holder runs for us."""

    def __init__(self, cluster: Cluster, line: str, on: str, out, env: dict, as_root: bool):
        if on not in cluster.hosts:
            raise ValueError(f"on={on!r}: the hosts are {', '.join(cluster.hosts)}")
        self.line, self.control = line, cluster.control
        request = {
            "argv": ["/bin/sh", "-c", line],
            "host": cluster.hosts.index(on),
            "folder": str(ROOT),
            "env": {**environment(), **env},
            "as_oneself": not as_root,
        }
        read, write = os.pipe()
        self.answers, self.said = read, b""
        try:
            files = [out.fileno(), out.fileno(), write]
            socket.send_fds(self.control, [json.dumps(request).encode()], files)
        except OSError as error:
            raise SlurmError(f"the cluster has ended: {error.strerror}") from None
        finally:
            os.close(write)

    def exit_code(self, wait: float) -> int | None:
        """The exit code; None if there is none after so many seconds. Raises SlurmError."""
        if not select.select([self.answers], [], [], wait)[0]:
            return None
        text = os.read(self.answers, 64)
        self.said += text
        if self.said.count(b"\n") == 2:
            return int(self.said.split()[1])
        if not text:
            raise SlurmError("the cluster has ended")
        return None

    def end(self) -> None:
        """Kill it if it has not ended."""
        os.close(self.answers)
        if self.said.count(b"\n") == 1:
            with contextlib.suppress(OSError):
                self.control.send(json.dumps({"kill": int(self.said)}).encode())


def environment() -> dict[str, str]:
    """What commands and jobs get of this process's environment, and where this Python is.

    If this process is in a job of another Slurm, that one's variables stay outside. Job files say
    where their output goes as on any cluster, by #SBATCH --output; Slurm takes SBATCH_OUTPUT
    instead where it is set, and so this course's output comes to its records.
    """
    own = {name: text for name, text in os.environ.items() if not name.startswith(NOT_INHERITED)}
    programs = [str(slurm_site.PROGRAMS), os.path.dirname(sys.executable), simulated_hosts.SEARCH]
    path = os.pathsep.join(programs)
    return {**own, "PATH": path, "SBATCH_OUTPUT": str(LOGS / "%x-%j.out")}
