"""What this machine is: cores a rank may use, memory, GPUs."""

import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bootcamp.table import Table

HOST_INTERFACE = "eth0"  # of a simulated host (launcher/simulated_hosts.py)


def hidden(what: str) -> bool:
    """Whether a lesson shall go as if this machine had not this: a package, or "hosts".

    The environment variable BOOTCAMP_WITHOUT=horovod,hosts says so, to see what is shown then.
    """
    return what in os.environ.get("BOOTCAMP_WITHOUT", "").split(",")


def lacks_for_inductor(torch_folder: str) -> str | None:
    """What torch.compile lacks to write C++ for a CPU, with torch in this folder; None: nothing."""
    if not shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")):
        return "a C++ compiler"
    if " " in torch_folder:  # it stands in the compiler's command without quotes
        return "a folder for torch without a blank in its path"
    return None


def cores() -> list[int]:
    """The logical CPUs that this process may use, one of each physical core, as a sorted list.

    Two hardware threads of one core share its arithmetic units, so they are one device, not two.
    A container's CPU quota (cgroup v1 or v2) shortens the list: a rank beyond it would only wait.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return list(range(os.cpu_count() or 1))
    one_per_core = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        one_per_core.setdefault(_siblings(cpu), cpu)
    chosen = sorted(one_per_core.values())
    return chosen[: max(1, int(min(len(chosen), cpu_quota())))]


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)


def cpu_quota() -> float:
    """CPUs that the control group grants this process; infinity where it sets no limit."""
    quotas = [float("inf")]
    for line in _lines("/proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        root = f"/sys/fs/cgroup/{controllers}".rstrip("/")
        for folder in (f"{root}{group}", root):
            # "150000 100000" or "max 100000"; in version 1 two files, and -1 for no limit
            words = " ".join(_lines(f"{folder}/cpu.max")).split()
            if "cpu" in controllers.split(","):
                words = _lines(f"{folder}/cpu.cfs_quota_us") + _lines(f"{folder}/cpu.cfs_period_us")
            if len(words) == 2 and words[0] not in ("max", "-1"):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def memory_bytes() -> int:
    """Main memory of the machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_peak_bytes() -> int:
    """Peak resident memory of this process in bytes (on Linux its own, without its parent's)."""
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


class Gpu(NamedTuple):
    """A GPU of this machine: its index for nvidia-smi, its name, its UUID."""

    index: int
    name: str
    uuid: str


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU, as nvidia-smi lists them; empty without it. Does not start CUDA."""
    query = ["nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.split(", ") for line in answer.stdout.splitlines() if ", " in line]
    return tuple(Gpu(index, name, uuid) for index, (name, uuid) in enumerate(rows))


def visible_gpus(visible: str | None) -> list[Gpu]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES leaves, None for all, in its order."""
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
    """Names of the GPUs that are visible to this process. The rank side asks torch instead."""
    return tuple(gpu.name for gpu in visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))


@cache
def cpu_name() -> str:
    """The processor's own name, as the kernel tells it."""
    lines = _lines("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(gpus: tuple[str, ...] | None = None) -> dict:
    """The machine as a flat dictionary, as it is written into every run's record."""
    return {
        "cpu": cpu_name(),
        "cores": len(cores()),
        "memory_bytes": memory_bytes(),
        "gpus": list(gpu_names() if gpus is None else gpus),
        "system": f"{platform.system()} {platform.machine()}",
    }


def table() -> Table:
    """The machine as a reader sees it."""
    about = describe()
    about["memory"] = f"{about.pop('memory_bytes') / 1e9:.1f} GB"
    about["gpus"] = ", ".join(about["gpus"]) or "none"
    return Table([{"what": what, "on this machine": value} for what, value in about.items()])
