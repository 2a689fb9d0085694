"""python -P src/bootcamp/hosts/slurm_holder.py '{"hosts": 2, "cpus": 4, ...}' SOCKET

Holds a Slurm site on simulated hosts. slurm.py starts it and speaks with it over the socket.

Two processes. The outer one only waits: when the process that started it has gone, or the inner
one, it ends. The inner one is the first of a process namespace: when it ends, the kernel kills
every other process in there, daemons, agents and ranks alike. What the daemons write lies on a disk
in memory that only their mount namespace has. So nothing is left, whatever ended it.

Slurm's daemons start jobs as the user who sent them, which only root of a machine can do for
several users. Who is not root becomes root of a user namespace to make the hosts, and himself again
in a second one to run the daemons, which then start his own jobs and nobody else's.

A request is one message on the socket: what to run, as JSON, and three open files: for the
program's output, for its errors, for the answers. These are two lines, its process id as it starts
and its exit code as it ends.
"""

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.hosts import slurm_site
from bootcamp.launcher import forkserver, simulated_hosts
from bootcamp.launcher.simulated_hosts import MS_BIND, MS_PRIVATE, MS_REC, HostsError

CLONE_NEWPID, CLONE_NEWIPC = 0x20000000, 0x08000000  # <sched.h>
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # <sys/mount.h>
SECONDS_TO_START = 30
LONGEST_MESSAGE = 1 << 20


class Site:
    """The inner process's hosts and daemons, and the programs that somebody waits for."""

    def __init__(self, settings: dict):
        self.settings = settings
        self.hosts = simulated_hosts.make(settings["hosts"], settings["link"])
        self.answers: dict[int, int] = {}  # a program's process id -> the file for its exit code

    def start(self) -> None:
        """Start munge and Slurm. Raises HostsError unless every host is idle soon."""
        settings = self.settings
        slurm_site.write(settings["hosts"], settings["cpus"], settings["gpus"], settings["user"])
        slurm_site.MUNGE_KEY.write_bytes(secrets.token_bytes(128))
        slurm_site.MUNGE_KEY.chmod(0o600)
        forkserver.install(slurm_site.PROGRAMS)
        warm = ("-P", forkserver.__file__, str(slurm_site.PROGRAMS))
        self._start_daemon(sys.executable, *warm, as_oneself=False)
        self._start_daemon("munged", "--foreground", "--force")  # of whoever owns "/"
        self._wait_for(slurm_site.MUNGE_SOCKET.exists)
        self._start_daemon("slurmctld", "-D", "-c")
        for host in range(len(self.hosts)):
            self._start_daemon("slurmd", "-D", host=host)
        self._wait_for(self._all_idle)

    def _start_daemon(self, name: str, *arguments: str, host: int = 0, **how) -> None:
        path = shutil.which(name, path=simulated_hosts.SEARCH)
        with open(slurm_site.LOGS / f"{Path(name).name}-{host}.out", "ab") as out:
            self.spawn([path, *arguments], host, (out.fileno(), out.fileno()), **how)

    def _all_idle(self) -> bool:
        ask = ["sinfo", "--noheader", "--states=idle", "--partition=main", "--format=%D"]
        with open(slurm_site.LOGS / "sinfo.out", "w+b") as out:
            os.waitpid(self.spawn(ask, 0, (out.fileno(), out.fileno())), 0)
            out.seek(0)
            return out.read().strip() == str(len(self.hosts)).encode()

    def _wait_for(self, ready) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while not ready():
            if time.monotonic() > deadline:
                logs = sorted(slurm_site.LOGS.glob("*"))
                said = "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in logs)
                raise HostsError(f"Slurm did not start within {SECONDS_TO_START} s.\n{said}")
            time.sleep(0.02)

    def spawn(
        self,
        argv: list[str],
        host: int,
        files: tuple[int, int],
        folder: str = "/",
        env=os.environ,
        as_oneself: bool = True,
    ) -> int:
        """Start a program on a host, in a session of its own; its process id.

        files: for its output and its errors. as_oneself: or else as root of the user namespace, if
        there is one.
        """
        if pid := os.fork():
            return pid
        try:
            os.setsid()
            with open(os.devnull) as nothing:
                for target, file in enumerate((nothing.fileno(), *files)):
                    os.dup2(file, target)
            linux.enter(self.hosts[host]["pid"])
            if self.settings["user"] != 0 and as_oneself:
                become_oneself(self.settings["user"], self.settings["group"])
            for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(folder)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"{error.filename or argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)  # as a shell says it

    def serve(self, control: socket.socket) -> None:
        """Start what is asked for, and take the exit status of every orphan, until nobody asks."""
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            self._take_exits()
            readable, _, _ = select.select([control, woken], [], [])
            if woken in readable:
                os.read(woken, 4096)
            if control in readable:
                message, files, _, _ = socket.recv_fds(control, LONGEST_MESSAGE, 3)
                if not message:
                    return
                self._answer(json.loads(message), files)

    def _answer(self, request: dict, files: list[int]) -> None:
        if "kill" in request:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(request["kill"], signal.SIGKILL)
            return
        out, err, answer = files
        how = {name: request[name] for name in ("argv", "host", "folder", "env", "as_oneself")}
        pid = self.spawn(files=(out, err), **how)
        os.close(out)
        os.close(err)
        self.answers[pid] = answer
        tell(answer, pid)

    def _take_exits(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if (answer := self.answers.pop(found[0], None)) is not None:
                    tell(answer, os.waitstatus_to_exitcode(found[1]))
                    os.close(answer)


def tell(answer: int, number: int) -> None:
    """Write a number as a line, unless the reader has gone."""
    with contextlib.suppress(OSError):
        os.write(answer, f"{number}\n".encode())


def become_oneself(uid: int, gid: int) -> None:
    """From root of a user namespace to the user who made it, in one within it."""
    linux.call("unshare", linux.NAMESPACES["user"])
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} 0 1")
    Path("/proc/self/gid_map").write_text(f"{gid} 0 1")


def mount(what: str, place: Path | str, kind: str, flags: int, options: str = "") -> None:
    """As simulated_hosts.mount, for the cluster. Raises HostsError."""
    try:
        simulated_hosts.mount(what, place, kind, flags, options)
    except OSError as error:
        raise HostsError(
            f"this system does not let the cluster have {place} for itself: {error.strerror}. "
            "In a container, start it with --privileged"
        ) from None


def make_device(place: Path) -> None:
    """Something that Slurm takes for the device file of a GPU; for all hosts made afterwards."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    mount(os.devnull, place, "none", MS_BIND)


def hold(settings: dict, control: socket.socket) -> None:
    """What the inner process does, from its first moment to its last."""
    try:
        linux.die_with_parent()
        mount("none", "/", "none", MS_REC | MS_PRIVATE)  # nothing gets out
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for folder in slurm_site.FOLDERS:
            mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755")
        for folder in (slurm_site.LOGS, slurm_site.MUNGE_SOCKET.parent):
            folder.mkdir()
        for gpu in range(settings["gpus"]):
            make_device(slurm_site.GPUS / f"nvidia{gpu}")
        site = Site(settings)
        site.start()
    except (HostsError, OSError) as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    control.send(json.dumps({"ready": True}).encode())
    site.serve(control)


def main() -> None:
    """What the outer process does: make the inner one, wait for it or for who asked for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button
    settings, control = json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    settings |= {"user": os.getuid(), "group": os.getgid()}
    try:
        client = os.pidfd_open(os.getppid())
        simulated_hosts.enter_new_namespaces()
        linux.call("unshare", CLONE_NEWPID | CLONE_NEWIPC)
        inner = os.fork()
    except (HostsError, OSError) as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    if inner == 0:
        try:
            hold(settings, control)
        finally:
            os._exit(0)
    control.close()
    select.select([client, os.pidfd_open(inner)], [], [])
    os.kill(inner, signal.SIGKILL)
    os.waitpid(inner, 0)  # the kernel has ended everything when this returns


if __name__ == "__main__":
    main()
