"""This machine: the cores that a rank may use, memory, GPUs."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bootcamp.table import Table

HOST_INTERFACE = "eth0"  # of a simulated host (launcher/simulated_hosts.py)


def is_hidden(what: str) -> bool:
    """Whether BOOTCAMP_WITHOUT=horovod,hosts names this: lessons then do without it."""
    return what in os.environ.get("BOOTCAMP_WITHOUT", "").split(",")


def find_missing_for_inductor(torch_folder: str) -> str | None:
    """Say what torch.compile lacks here to compile C++ for a CPU; None if nothing."""
    if not shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")):
        return "a C++ compiler"
    if " " in torch_folder:  # it stands in the compiler's command without quotes
        return "a folder for torch without a blank in its path"
    return None


def cores() -> list[int]:
    """List the logical CPUs that this process may use, one of each physical core.

    Two hardware threads of one core share its arithmetic units, so they are one device, not two.
    A container's CPU quota (cgroup v1 or v2) shortens the list: a rank beyond it would only wait.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return list(range(os.cpu_count() or 1))
    one_per_core = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        one_per_core.setdefault(" ".join(_read_lines(siblings)) or cpu, cpu)
    chosen = list(one_per_core.values())
    return chosen[: max(1, int(min(len(chosen), cpu_quota())))]


def cpu_quota() -> float:
    """Return the CPUs that the control group grants this process; infinity without a limit."""
    quotas = [float("inf")]
    for line in (one for one in _read_lines("/proc/self/cgroup") if "::" in one or "cpu" in one):
        _, controllers, group = line.split(":", 2)
        root = f"/sys/fs/cgroup/{controllers}".rstrip("/")
        for folder in (f"{root}{group}", root):
            # "150000 100000" or "max 100000"; in version 1 two files, and -1 for no limit
            names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [word for name in names for word in _read_lines(f"{folder}/{name}")]
            quota, _, period = " ".join(words).partition(" ")
            if quota.isdigit():
                quotas.append(int(quota) / int(period))
    return min(quotas)


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_peak_bytes() -> int:
    """Return this process's peak resident memory in bytes (on Linux without its parent's)."""
    for line in _read_lines("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


class Gpu(NamedTuple):
    """A GPU of this machine: its index for nvidia-smi, its name, its UUID."""

    index: int  # type: ignore[assignment]  # a tuple's method is not needed
    name: str
    uuid: str


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """List every GPU by nvidia-smi, without starting CUDA; empty without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.split(", ") for line in answer.stdout.splitlines() if ", " in line]
    return tuple(Gpu(index, name, uuid) for index, (name, uuid) in enumerate(rows))


def visible_gpus(visible: str | None) -> list[Gpu]:
    """List the GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order; None leaves all."""
    if visible is None:
        return list(all_gpus())
    chosen = []
    for entry in map(str.strip, visible.split(",")):
        uuid = entry if entry.startswith("GPU-") else "-"
        named = [g for g in all_gpus() if entry == str(g.index) or g.uuid.startswith(uuid)]
        if not named:
            break  # as CUDA does: the list ends at the first entry that names no GPU
        chosen += named
    return chosen


def gpu_names() -> tuple[str, ...]:
    """List the names of the GPUs that are visible to this process. Ranks ask torch instead."""
    return tuple(gpu.name for gpu in visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))


@cache
def cpu_name() -> str:
    """Return the processor's name, from the kernel."""
    for line in _read_lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(gpus: tuple[str, ...] | None = None) -> dict:
    """Describe the machine as every run's record has it."""
    return {
        "cpu": cpu_name(),
        "cores": len(cores()),
        "memory_bytes": memory_bytes(),
        "gpus": list(gpu_names() if gpus is None else gpus),
        "system": f"{platform.system()} {platform.machine()}",
    }


def table() -> Table:
    """Describe the machine as a table for a reader."""
    about = describe()
    about["memory"] = f"{about.pop('memory_bytes') / 1e9:.1f} GB"
    about["gpus"] = ", ".join(about["gpus"]) or "none"
    return Table([{"what": what, "on this machine": value} for what, value in about.items()])
