"""Which processes belong to a run, as psutil sees them.

A process belongs to a run if it descends from one of the run's ranks, sits in the session that the
run's ranks were started in, or was started with the run's name in its environment. Each of the
three catches what the others miss: a forked rank shows its server's environment, torchrun's workers
sit in sessions of their own, and an orphan has lost its ancestors.
"""

import contextlib
import os
import signal
import sys
import time
from collections import defaultdict

import psutil

TRACKER, TRACKER_SECONDS = "multiprocessing.resource_tracker", 5
IN_PROC = sys.platform == "linux"  # read there, a fourth of the time: each run looks several times


def alive(pid: int) -> bool:
    """Whether a process is there. A zombie is not, once all its threads have ended."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of children that it waited for; 0 where it can't be read."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    of_children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return times.user + times.system + of_children


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it can't be read."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def command(pid: int) -> str:
    """The command line of a process; empty for a zombie or one that is gone."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except (psutil.Error, OSError):
        return ""


def session(pid: int) -> int | None:
    """The session that a process is in, None when it is gone."""
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def below(roots: set[int]) -> set[int]:
    """Every process below these, at any depth; zombies too."""
    children = defaultdict(set)
    for pid, parent in _parents():
        children[parent].add(pid)
    found, to_ask = set(), list(roots)
    while to_ask:
        new = children[to_ask.pop()] - found
        found |= new
        to_ask += new
    return found


def _parents():
    """(process id, its parent's) of every process: psutil reads that anew for each that it asks."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if IN_PROC:
                with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                    stat = file.read()  # 4711 (its (name)) S 4710 ...
                yield pid, int(stat.rpartition(b")")[2].split(None, 2)[1])
            else:
                yield pid, psutil.Process(pid).ppid()


def marked(name: str, value: str) -> set[int]:
    """The living processes that were started with this variable in their environment."""
    return {pid for pid in psutil.pids() if _has(pid, name, value) and alive(pid)}


def _has(pid: int, name: str, value: str) -> bool:
    if not IN_PROC:
        return environment(pid).get(name) == value
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read()
    except OSError:
        return False
    return f"\0{name}={value}\0".encode() in b"\0" + variables


def of_run(run: str, roots: set[int], sessions: set[int]) -> set[int]:
    """The living processes of a run: below its roots, in its sessions, or marked with its name."""
    members = roots | below(roots) | marked("BOOTCAMP_RUN", run)
    members |= {pid for pid in psutil.pids() if session(pid) in sessions}
    return {pid for pid in members if alive(pid)}


def end(pids: set[int]) -> None:
    """Kill these processes with SIGKILL; one that is gone already is no error.

    A tracker of Python's multiprocessing is killed last: once all who share its semaphores have
    ended it takes away those that they left in /dev/shm, and ends.
    """
    trackers = {pid for pid in pids if TRACKER in command(pid)}
    for others_are_gone in (False, True):
        deadline = time.monotonic() + TRACKER_SECONDS * others_are_gone
        while any(map(alive, trackers)) and time.monotonic() < deadline:
            time.sleep(0.005)
        _kill(trackers if others_are_gone else pids - trackers)


def end_everything_below() -> None:
    """Kill every process below this one, and reap its children, until none is left."""
    while found := below({os.getpid()}):
        end(found)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def reap(pids: set[int]) -> None:
    """Take the exit status of these processes, as far as they are dead children of this one."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
