"""python src/snippets/nvitop_simulated.py PID ...

The program nvitop on two simulated GPUs, with a process of this machine on each. Everything that is
drawn is nvitop's own; only NVML, the library that it asks, is played here: `query` answers what
ANSWERS has and `N/A` to the rest, as NVML does for what a card cannot tell.
"""

import sys
from types import SimpleNamespace

import psutil
from nvitop import cli
from nvitop.api import libnvml

TOTAL = 16 << 30
BUSY = (0, 100)  # percent of the time in which a kernel ran, on each card
ON_CARD = [[int(pid) for pid in sys.argv[1 + card :: 2]] for card in range(2)]


def read_held_bytes(pid: int) -> int:
    """What a process holds: its main memory stands in for GPU memory."""
    return psutil.Process(pid).memory_info().rss if psutil.pid_exists(pid) else 0


def list_processes(card: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=read_held_bytes(pid)) for pid in ON_CARD[card]]


def list_shares(card: int, *_) -> list[SimpleNamespace]:
    """How busy each process keeps its card, in percent."""
    same = {"timeStamp": 0, "smUtil": BUSY[card], "memUtil": 0, "encUtil": 0, "decUtil": 0}
    return [SimpleNamespace(pid=pid, **same) for pid in ON_CARD[card]]


def read_memory(card: int) -> SimpleNamespace:
    used = sum(map(read_held_bytes, ON_CARD[card]))
    return SimpleNamespace(total=TOTAL, free=TOTAL - used, used=used)


ANSWERS = {
    "nvmlSystemGetDriverVersion": lambda: "simulated",
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetIndex": lambda card: card,
    "nvmlDeviceGetName": lambda _: "simulated GPU",
    "nvmlDeviceGetUUID": "GPU-{}".format,
    "nvmlDeviceGetMemoryInfo": read_memory,
    "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=BUSY[card], memory=0),
    "nvmlDeviceGetComputeRunningProcesses": list_processes,
    "nvmlDeviceGetProcessUtilization": list_shares,
}


def query(what, *args, default=libnvml.NA, **_):
    """Stand in for nvitop's nvmlQuery, through which it asks all of NVML."""
    return ANSWERS[what](*args) if what in ANSWERS else default


if __name__ == "__main__":
    libnvml.nvmlQuery = query
    sys.argv[1:] = ["--once"]
    sys.exit(cli.main())
