"""Which processes belong to a run, read from /proc. Standard library only, Linux only.

A process belongs to a run if it descends from one of the run's ranks, sits in the session that the
run's ranks were started in, or was started with the run's name in its environment. Each of the
three catches what the others miss: a forked rank shows its server's environment, torchrun's workers
sit in sessions of their own, and an orphan has lost its ancestors.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One row of /proc: process id, its parent's, its session's, state letter, start time."""

    pid: int
    parent: int
    session: int
    state: str
    started: int


def processes() -> dict[int, Process]:
    """Every process that can be seen now, zombies too, by process id. Empty without /proc."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[int(name)] = read(int(name))
    return found


def read(pid: int) -> Process:
    """One process's row. Raises FileNotFoundError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far; 0 where it can't be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it can't be read."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def command(pid: int) -> str:
    """The command line of a process; empty for a zombie or one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def tree(roots: set[int], table: dict[int, Process]) -> set[int]:
    """The roots and every process below them."""
    found, size = set(roots), -1
    while size != len(found):
        size = len(found)
        found |= {p.pid for p in table.values() if p.parent in found}
    return found


def of_run(run: str, roots: set[int], sessions: set[int]) -> set[int]:
    """The living processes of a run: below its roots, in its sessions, or marked with its name."""
    table = processes()
    alive = {pid for pid, process in table.items() if process.state not in "ZX"}
    members = tree(roots & alive, table)
    members |= {pid for pid in alive if table[pid].session in sessions}
    members |= {pid for pid in alive if environment(pid).get("BOOTCAMP_RUN") == run}
    return members & alive


def end(pids: set[int]) -> None:
    """Kill these processes with SIGKILL; one that is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
