"""Find and end the processes of a run.

A process belongs to a run if it descends from one of the run's ranks, sits in the session of one,
or was started with the run's name in its environment. Each of the three catches what the others
miss: a forked rank shows its server's environment, torchrun's workers sit in sessions of their own,
and an orphan has lost its ancestors.
"""

import contextlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable

import psutil

TRACKER, TRACKER_SECONDS = "multiprocessing.resource_tracker", 5
IN_PROC = sys.platform == "linux"  # read there, a fourth of the time: each run looks several times
UNREADABLE = (psutil.Error, OSError)


def is_alive(pid: int) -> bool:
    """Whether a process is there. A zombie is not, once all its threads have ended."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.Error as error:
        return isinstance(error, psutil.AccessDenied)


def read_cpu_seconds(pid: int) -> float:
    """Sum the processor time of a process and of children that it waited for; 0 if unreadable."""
    with contextlib.suppress(*UNREADABLE):
        return sum(psutil.Process(pid).cpu_times()[:4])  # user, system, and those of the children
    return 0.0


def read_environment(pid: int) -> dict[str, str]:
    """Read the environment that a process was started with; empty where it can't be read."""
    with contextlib.suppress(*UNREADABLE):
        if not IN_PROC:
            return psutil.Process(pid).environ()
        with open(f"/proc/{pid}/environ", errors="replace", newline="") as file:
            return dict(line.split("=", 1) for line in file.read().split("\0") if "=" in line)
    return {}


def read_command(pid: int) -> str:
    """Read the command line of a process; empty for a zombie or one that is gone."""
    with contextlib.suppress(*UNREADABLE):
        return " ".join(psutil.Process(pid).cmdline()).strip()
    return ""


def read_session(pid: int) -> int | None:
    """Return the session that a process is in, None when it is gone."""
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def find_below(roots: set[int]) -> set[int]:
    """Find every process below these, at any depth; zombies too."""
    children = defaultdict(set)
    for pid in psutil.pids():
        with contextlib.suppress(*UNREADABLE):
            if IN_PROC:
                with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                    stat = file.read()  # 4711 (its (name)) S 4710 ...
                parent = int(stat.rpartition(b")")[2].split(None, 2)[1])
            else:
                parent = psutil.Process(pid).ppid()
            children[parent].add(pid)
    found, to_ask = set(), list(roots)
    while to_ask:
        new = children[to_ask.pop()] - found
        found |= new
        to_ask += new
    return found


def find_marked(name: str, value: str) -> set[int]:
    """Find the living processes that were started with this variable in their environment."""
    marked = {pid for pid in psutil.pids() if read_environment(pid).get(name) == value}
    return {pid for pid in marked if is_alive(pid)}


def find_members(run: str, roots: set[int], sessions: set[int]) -> set[int]:
    """Find a run's living processes: below its roots, in its sessions, or marked with its name."""
    in_sessions = {pid for pid in psutil.pids() if read_session(pid) in sessions}
    members = roots | find_below(roots) | find_marked("BOOTCAMP_RUN", run) | in_sessions
    return {pid for pid in members if is_alive(pid)}


def kill(pids: set[int]) -> None:
    """Kill these processes; one that is gone already is no error.

    multiprocessing's tracker goes last: it removes semaphores that others leave in /dev/shm.
    """
    trackers = {pid for pid in pids if TRACKER in read_command(pid)}
    send_signal(pids - trackers, signal.SIGKILL)
    deadline = time.monotonic() + TRACKER_SECONDS
    while any(map(is_alive, trackers)) and time.monotonic() < deadline:
        time.sleep(0.005)
    send_signal(trackers, signal.SIGKILL)


def kill_everything_below() -> None:
    """Kill every process below this one, and reap its children, until none is left."""
    while found := find_below({os.getpid()}):
        kill(found)
        reap(found)
        time.sleep(0.01)


def reap(pids: set[int]) -> None:
    """Take the exit status of these processes, as far as they are dead children of this one."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to these processes; one that is gone or another user's is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
