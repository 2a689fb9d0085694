"""Lesson 13b: two ranks that lose their parent, the tools that find them, and how they end.

    with Orphans() as orphans:
        orphans.lose_their_parent()
        orphans.find_with_tools()
        orphans.end(signal.SIGTERM)

Each ends by itself after SECONDS, so none outlives a cell whose kernel was killed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bootcamp.launcher import process_tree
from bootcamp.launcher.orphans import orphans
from bootcamp.paths import SRC
from bootcamp.scripts.variants import variant
from bootcamp.table import Table

SECONDS = 60
SCRIPT = "_train_left_behind"
SHARED = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
# the parent starts both ranks, as torchrun's agent does, and waits
PARENT = 'for kind in polite stubborn; do LEFT_BEHIND=$kind "$0" "$@" & done; wait'
HOLD = f"""\
import pathlib, signal, socket
kind, pid = os.environ["LEFT_BEHIND"], os.getpid()
port = socket.create_server(("127.0.0.1", 0))
shared = pathlib.Path({str(SHARED)!r}, f"left-behind-{{kind}}-{{pid}}-{{port.getsockname()[1]}}")
def tidy(*_):
    shared.unlink()
    os._exit(0)
signal.signal(signal.SIGALRM, tidy)
signal.signal(signal.SIGTERM, tidy if kind == "polite" else signal.SIG_IGN)
shared.write_bytes(bytes(2**20))
signal.pause()
"""
CHANGES = {
    "from bootcamp.train import checkpoint, config, data, models, optimizers, record": (
        f"import os\nimport signal\n\nsignal.alarm({SECONDS})\nimport torch"
    ),
    'args, context = config.parse(devices=("cpu",))': HOLD,
}


class Orphans:
    """Two processes of a training script: on TERM one tidies up, the other ignores it.

    Each holds memory, a port, and a file of 1 MiB in shared memory, as NCCL and DataLoaders do.
    At the end of `with` both are gone, and so are their files.
    """

    def __enter__(self):
        own = ("BOOTCAMP_KERNEL", "BOOTCAMP_SUPERVISOR")  # nobody of the course looks after them
        env = {name: value for name, value in os.environ.items() if name not in own}
        command = ["sh", "-c", PARENT, sys.executable, str(variant("cpu", SCRIPT, CHANGES))]
        self.files: dict[str, Path] = {}
        self.processes: dict[str, psutil.Process] = {}
        self.parent = subprocess.Popen(command, env=env, start_new_session=True)
        try:
            _wait_until(self._both_hold, SECONDS)
            if len(self.files) < 2:
                raise RuntimeError("the two ranks did not start: look at the error above")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        left = {each.pid for each in self.processes.values() if each.is_running()}
        process_tree.kill(left | process_tree.find_below({self.parent.pid}) | {self.parent.pid})
        self.parent.wait()
        _wait_until(lambda: not any(process_tree.is_alive(pid) for pid in left))
        for file in self.files.values():
            file.unlink(missing_ok=True)

    def _both_hold(self) -> bool:
        """Tell whether both ranks have their file, or will not get it."""
        for child in psutil.Process(self.parent.pid).children():
            for file in SHARED.glob(f"left-behind-*-{child.pid}-*"):
                kind = file.name.split("-")[2]
                self.files[kind], self.processes[kind] = file, child
        return len(self.files) == 2 or self.parent.poll() is not None

    def lose_their_parent(self) -> None:
        """KILL the process that started them, so that it can't pass anything on."""
        self.parent.kill()
        self.parent.wait()
        _wait_until(lambda: all(each.ppid() != self.parent.pid for each in self.processes.values()))

    def end(self, number: signal.Signals) -> None:
        """Send a signal to living orphans, and wait until those that heed it are gone."""
        heeding = []
        for kind, each in self.processes.items():
            if process_tree.is_alive(each.pid):
                each.send_signal(number)
                if (kind, number) != ("stubborn", signal.SIGTERM):
                    heeding.append(each.pid)
        _wait_until(lambda: not any(map(process_tree.is_alive, heeding)))

    def look(self, moment: str) -> list[dict]:
        """Return a row for each: its process, memory, port and file."""
        rows = []
        for kind, file in sorted(self.files.items()):
            alive = process_tree.is_alive(self.processes[kind].pid)
            row = {"moment": moment, "rank": kind, "process": "alive" if alive else "gone"}
            row["memory MB"] = self.processes[kind].memory_info().rss / 1e6 if alive else 0
            row["port"] = "free" if _is_free(int(file.name.rpartition("-")[2])) else "taken"
            rows.append(row | {"file": "there" if file.exists() else "gone"})
        return rows

    def find_with_tools(self) -> Table:
        """Table which of ps, nvitop and orphans() list them."""
        mine = {each.pid for each in self.processes.values()}
        ways = {
            "ps -ww -eo pid,ppid,args": _list_with_ps(),
            "nvitop.host.process_iter()": _list_with_nvitop(),
            "orphans()": {row["process"]: row["why"] for row in orphans()},
        }
        rows = []
        for way, listed in ways.items():
            says = sorted({text for pid, text in listed.items() if pid in mine})
            rows.append({"by": way, "found": len(mine & set(listed)), "says": ", ".join(says)})
        return Table(rows, "Training scripts whose parent is not the one that started them")

    def draw_with_nvitop(self) -> str:
        """Return what nvitop prints here, and with the two orphans on simulated GPUs."""
        simulated = [str(SRC / "snippets" / "nvitop_simulated.py")]
        simulated += [str(self.processes[kind].pid) for kind in ("polite", "stubborn")]
        where = {"This machine": ["-m", "nvitop", "--once"], "Simulated GPUs": simulated}
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        how = {"env": os.environ | {"COLUMNS": "110"}, "text": True, "timeout": SECONDS, **both}
        texts = []
        for name, command in where.items():
            done = subprocess.run([sys.executable, *command], **how)
            texts.append(f"{name}:\n\n{done.stdout}")
        return "\n".join(texts)


def _list_with_ps() -> dict[int, str]:
    """Return {process: its parent} of processes whose command has the script's name."""
    command = ["ps", "-ww", "-eo", "pid,ppid,args"]  # without -ww it may cut long commands
    done = subprocess.run(command, capture_output=True, text=True)
    fields = [line.split(None, 2) for line in done.stdout.splitlines()[1:]]
    return {int(pid): f"parent {parent}" for pid, parent, args in fields if SCRIPT in args}


def _list_with_nvitop() -> dict[int, str]:
    """Return {process: name, user and memory}; without a GPU nvitop lists the host's alone."""
    try:
        from nvitop import host
    except ImportError:
        return {}
    seen = {}
    for process in host.process_iter():
        with contextlib.suppress(host.PsutilError):
            if SCRIPT in " ".join(process.cmdline()):
                memory = process.memory_info().rss / 1e6
                seen[process.pid] = f"{process.name()} of {process.username()}, {memory:.0f} MB"
    return seen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
