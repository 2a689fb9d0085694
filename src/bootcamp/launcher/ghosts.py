"""Processes of this course that should not be there: `ghosts()`, `ghosts(end=[4711])`.

The launcher leaves none. A torchrun that was started by hand and lost its terminal may, and a rank
that nobody watches keeps its cores, its GPU memory and its port.
"""

import os
import re
import subprocess

import psutil

from bootcamp import machine
from bootcamp.launcher import process_tree
from bootcamp.table import Table

SCRIPT = re.compile(r"_train_\w+\.py")


def ghosts(end: list[int] = ()) -> Table:
    """The ranks of this course that no living kernel or terminal owns, after ending those named.

    end: process ids out of this table. Any other is refused with ValueError: this ends ghosts only.
    A row for each ghost: process id, its command, why it is one, its memory. On a machine with GPUs
    also a row for each process that holds GPU memory, as nvitop sees it, of any owner.
    """
    found = {row["process"]: row for row in _ghosts()}
    strangers = [pid for pid in end if pid not in found]
    if strangers:
        raise ValueError(
            f"end={strangers}: no ghosts of this course. ghosts() lists those that can be ended."
        )
    process_tree.end(set(end))
    rows = [row for pid, row in found.items() if pid not in end] + _gpu_rows(set(found))
    if not rows:
        return Table([], "No ghosts: no process of this course is without an owner.")
    return Table(rows, "Processes that should not be there, or that hold GPU memory")


def _ghosts() -> list[dict]:
    rows = []
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "environ", "memory_info"]):
        about = process.info  # None for what may not be read
        if about["pid"] == os.getpid() or not process_tree.alive(about["pid"]):
            continue
        command = " ".join(about["cmdline"] or [])
        if why := _reason(command, about["environ"] or {}, about["ppid"]):
            memory = about["memory_info"] and about["memory_info"].rss
            rows.append(_row(about["pid"], command, why, memory))
    return rows


def _row(pid: int, command: str, why: str, memory: int | None) -> dict:
    name = SCRIPT.search(command) or re.search(r"(forkserver|supervisor)\.py", command)
    command = name.group(0) if name else command[:60]
    return {"process": pid, "command": command, "why": why, "memory MB": memory and memory / 1e6}


def _reason(command: str, environment: dict, parent: int) -> str | None:
    """Why a process is a ghost, None if it is none."""
    kernel = environment.get("BOOTCAMP_KERNEL", "")
    if not kernel.isdigit() and not (SCRIPT.search(command) and "python" in command):
        return None
    for name in ("kernel", "supervisor"):
        owner = environment.get(f"BOOTCAMP_{name.upper()}", "")
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            return f"its {name}, process {owner}, is gone"
    return "its terminal is gone" if not kernel and _is_init(parent) else None


def _is_init(pid: int) -> bool:
    """Whether a process adopts orphans for the system: the first one, or a user's systemd."""
    return pid == 1 or "systemd" in process_tree.command(pid).split(" ")[0]


def _gpu_rows(ghosts_found: set[int]) -> list[dict]:
    """Processes that hold GPU memory. Empty without a GPU, where nobody is asked at all."""
    rows = []
    for pid, held in gpu_holders() if machine.gpu_names() else ():
        why = "a ghost that holds GPU memory" if pid in ghosts_found else "holds GPU memory"
        rows.append(_row(pid, process_tree.command(pid), why, held))
    return rows


def gpu_holders() -> list[tuple[int, int]]:
    """(process, bytes of GPU memory that it holds) as nvitop sees it, or nvidia-smi without it."""
    try:
        from nvitop import Device
    except ImportError:
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=20)
        found = re.findall(r"^(\d+), (\d+) MiB$", said.stdout, re.M)
        return [(int(pid), int(held) << 20) for pid, held in found]
    return [
        (pid, holder.gpu_memory())
        for device in Device.all()
        for pid, holder in device.processes().items()
    ]
