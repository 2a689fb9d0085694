"""List and end processes of this course that nobody owns: `orphans()`, `orphans(end=[4711])`.

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

SCRIPT = r"_train_\w+\.py"


def orphans(end: tuple[int, ...] | list[int] = ()) -> Table:
    """List the ranks of this course that no living kernel or terminal owns; first end those named.

    end: process ids out of this table; any other raises ValueError. On a machine with GPUs there is
    also a row for each process that holds GPU memory, of any owner.
    """
    found = {row["process"]: row for row in _find_orphans()}
    if strangers := [pid for pid in end if pid not in found]:
        raise ValueError(f"end={strangers}: no orphans of this course. orphans() lists them.")
    process_tree.kill(set(end))
    rows = [row for pid, row in found.items() if pid not in end]
    for pid, held in list_gpu_holders():
        why = "an orphan that holds GPU memory" if pid in found else "holds GPU memory"
        rows.append(_make_row(pid, process_tree.read_command(pid), why, held))
    none = "No orphans: no process of this course is without an owner."
    return Table(rows, "Processes without an owner, or that hold GPU memory" if rows else none)


def _find_orphans() -> list[dict]:
    rows = []
    for process in psutil.process_iter(["ppid", "cmdline", "environ", "memory_info"]):
        pid, about = process.pid, process.info  # None for what may not be read
        command = " ".join(about["cmdline"] or [])
        why = _find_reason(command, about["environ"] or {}, about["ppid"])
        if why and pid != os.getpid() and process_tree.is_alive(pid):
            rows.append(_make_row(pid, command, why, getattr(about["memory_info"], "rss", None)))
    return rows


def _find_reason(command: str, environment: dict, parent: int) -> str | None:
    """Say why a process is an orphan, None if it is none."""
    for name in ("kernel", "supervisor"):
        owner = environment.get(f"BOOTCAMP_{name.upper()}", "")
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            return f"its {name}, process {owner}, is gone"
    if "BOOTCAMP_KERNEL" in environment or not re.search(rf"python.*{SCRIPT}", command):
        return None
    # the first process adopts orphans, or a user's systemd does
    is_orphan = parent == 1 or "systemd" in process_tree.read_command(parent).split(" ")[0]
    return "its terminal is gone" if is_orphan else None


def _make_row(pid: int, command: str, why: str, memory: int | None) -> dict:
    name = re.search(SCRIPT, command) or re.search(r"(forkserver|supervisor)\.py", command)
    command = name[0] if name else command[:60]
    return {"process": pid, "command": command, "why": why, "memory MB": memory and memory / 1e6}


def list_gpu_holders() -> list[tuple[int, int | None]]:
    """List (process, bytes of GPU memory that it computes with, None if not told)."""
    if not machine.gpu_names():
        return []
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    found = re.findall(r"^(\d+), (?:(\d+) MiB|.*)$", answer.stdout, re.M)
    return [(int(pid), int(held) << 20 if held else None) for pid, held in found]
