"""python -P src/bootcamp/hosts/slurm_daemons.py '{"hosts": 2, "cpus": 4, ...}' SOCKET

Holds a Slurm site on simulated hosts. slurm.py starts it, hears over the socket whether the site is
up, and enters the hosts to run commands.

Two processes. The outer one only waits: when the process that started it has gone, or the inner
one, it ends. The inner one is the first of a process namespace: when it ends, the kernel kills
every other process in there, daemons, agents and ranks alike. What the daemons write lies on a disk
in memory that only their mount namespace has. So nothing is left, whatever ended it.

Slurm's daemons start jobs as the user who sent them, which only root of a machine can do for
several users. Who is not root becomes root of a user namespace to make the hosts, and himself again
in a second one to run the daemons, which then start his own jobs and nobody else's.
"""

import functools
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.hosts import slurm_conf
from bootcamp.launcher import forkserver, simulated_hosts
from bootcamp.launcher.simulated_hosts import MS_BIND, MS_PRIVATE, MS_REC, HostsError

CLONE_NEWPID, CLONE_NEWIPC = 0x20000000, 0x08000000  # <sched.h>
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # <sys/mount.h>
SECONDS_TO_START = 30
READY = b"ready"


def start_site(settings: dict) -> None:
    """Make the hosts, start munge and Slurm. Raises HostsError unless every host is idle soon."""
    hosts = simulated_hosts.make(settings["hosts"], settings["link"])
    user = (settings["user"], settings["group"]) if settings["user"] else None
    slurm_conf.write(settings["hosts"], settings["cpus"], settings["gpus"], settings["user"])
    slurm_conf.MUNGE_KEY.write_bytes(secrets.token_bytes(128))
    slurm_conf.MUNGE_KEY.chmod(0o600)
    forkserver.install(slurm_conf.PROGRAMS)
    warm = ["-P", forkserver.__file__, str(slurm_conf.PROGRAMS)]
    start_daemon(sys.executable, warm, hosts[0])
    start_daemon("munged", ["--foreground", "--force"], hosts[0], user)  # of whoever owns "/"
    wait_for(slurm_conf.MUNGE_SOCKET.exists)
    start_daemon("slurmctld", ["-D", "-c"], hosts[0], user)
    for host in hosts:
        start_daemon("slurmd", ["-D"], host, user)
    ask = ["sinfo", "--noheader", "--states=idle", "--partition=main", "--format=%D"]
    idle = functools.partial(subprocess.run, ask, capture_output=True, **inside(hosts[0], user))
    wait_for(lambda: idle().stdout.strip() == str(len(hosts)).encode())


def start_daemon(name: str, arguments: list[str], host: dict, user: tuple | None = None) -> None:
    """Start a program that ends with the process namespace. It writes into a file of its own."""
    path = shutil.which(name, path=simulated_hosts.SEARCH)
    log = slurm_conf.LOGS / f"{Path(name).name}-{host['name']}.out"
    with open(log, "ab") as out:
        how = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        subprocess.Popen([path, *arguments], start_new_session=True, **how, **inside(host, user))


def inside(host: dict, user: tuple[int, int] | None) -> dict:
    """Arguments of Popen for a program on a host.

    user: whom to be, where another user is root of a user namespace here.
    """

    def enter() -> None:
        linux.enter(host["pid"])
        if user:
            become(*user)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return {"cwd": "/", "preexec_fn": enter}


def become(uid: int, gid: int) -> None:
    """From root of a user namespace to the user who made it, in one within it."""
    linux.call("unshare", linux.NAMESPACES["user"])
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} 0 1")
    Path("/proc/self/gid_map").write_text(f"{gid} 0 1")


def wait_for(ready) -> None:
    """Wait until a function says yes. Raises HostsError with the ends of all logs."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not ready():
        if time.monotonic() > deadline:
            logs = sorted(slurm_conf.LOGS.glob("*"))
            said = "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in logs)
            raise HostsError(f"Slurm did not start within {SECONDS_TO_START} s.\n{said}")
        time.sleep(0.02)


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
        for folder in slurm_conf.FOLDERS:
            mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755")
        for folder in (slurm_conf.LOGS, slurm_conf.MUNGE_SOCKET.parent):
            folder.mkdir()
        for gpu in range(settings["gpus"]):
            make_device(slurm_conf.GPUS / f"nvidia{gpu}")
        start_site(settings)
    except (HostsError, OSError) as error:
        control.send(str(error).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps daemons and orphans
    control.send(READY)
    control.recv(1)


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
        control.send(str(error).encode())
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
