"""Lesson 13b: two ranks that lose their parent, what finds them, what ends them, what they leave.

    with Orphans() as orphans:
        orphans.lose_their_parent()
        orphans.found_by()
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
from bootcamp.launcher.ghosts import ghosts
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
    """Two processes of a training script: one tidies up when TERM tells it to end, one ignores it.

    Each holds its memory, a port, and a file of 1 MiB in shared memory, as NCCL and DataLoaders
    have them. They live within `with`: behind it both are gone, and so are their files.
    """

    def __enter__(self):
        own = ("BOOTCAMP_KERNEL", "BOOTCAMP_SUPERVISOR")  # nobody of the course looks after them
        env = {name: value for name, value in os.environ.items() if name not in own}
        command = ["sh", "-c", PARENT, sys.executable, str(variant("cpu", SCRIPT, CHANGES))]
        self.files: dict[str, Path] = {}
        self.processes: dict[str, psutil.Process] = {}
        self.parent = subprocess.Popen(command, env=env, start_new_session=True)
        try:
            _until(self._both_hold, SECONDS)
            if len(self.files) < 2:
                raise RuntimeError("the two ranks did not start: look at the error above")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        left = {each.pid for each in self.processes.values() if each.is_running()}
        process_tree.end(left | process_tree.below({self.parent.pid}) | {self.parent.pid})
        self.parent.wait()
        _until(lambda: not any(process_tree.alive(pid) for pid in left))
        for file in self.files.values():
            file.unlink(missing_ok=True)

    def _both_hold(self) -> bool:
        """Whether both ranks have their file, or will not get it."""
        for child in psutil.Process(self.parent.pid).children():
            for file in SHARED.glob(f"left-behind-*-{child.pid}-*"):
                kind = file.name.split("-")[2]
                self.files[kind], self.processes[kind] = file, child
        return len(self.files) == 2 or self.parent.poll() is not None

    def lose_their_parent(self) -> None:
        """KILL the process that has started them: it can't pass anything on."""
        self.parent.kill()
        self.parent.wait()
        _until(lambda: all(each.ppid() != self.parent.pid for each in self.processes.values()))

    def end(self, number: signal.Signals) -> None:
        """Send a signal to those that are alive, and wait until those that heed it are gone."""
        heed = [kind for kind in self.processes if (kind, number) != ("stubborn", signal.SIGTERM)]
        for each in self.processes.values():
            if process_tree.alive(each.pid):
                each.send_signal(number)
        _until(lambda: not any(process_tree.alive(self.processes[kind].pid) for kind in heed))

    def look(self, moment: str) -> list[dict]:
        """For each: is it alive, what memory has it, does its port answer, is its file there?"""
        rows = []
        for kind, file in sorted(self.files.items()):
            alive = process_tree.alive(self.processes[kind].pid)
            row = {"moment": moment, "rank": kind, "process": "alive" if alive else "gone"}
            row["memory MB"] = self.processes[kind].memory_info().rss / 1e6 if alive else 0
            row["port"] = "free" if _is_free(int(file.name.rpartition("-")[2])) else "taken"
            rows.append(row | {"file": "there" if file.exists() else "gone"})
        return rows

    def found_by(self) -> Table:
        """Who finds them, each in its own list: ps, nvitop's processes of this host, ghosts()."""
        mine = {each.pid for each in self.processes.values()}
        ways = {
            "ps -ww -eo pid,ppid,args": _listed_by_ps(),
            "nvitop.host.process_iter()": _listed_by_nvitop(),
            "ghosts()": {row["process"]: row["why"] for row in ghosts()},
        }
        rows = []
        for way, listed in ways.items():
            says = sorted({text for pid, text in listed.items() if pid in mine})
            rows.append({"by": way, "found": len(mine & set(listed)), "says": ", ".join(says)})
        return Table(rows, "Training scripts whose parent is not the one that started them")


def _listed_by_ps() -> dict[int, str]:
    """{process: who its parent is now} of each process whose command has the script's name."""
    command = ["ps", "-ww", "-eo", "pid,ppid,args"]  # without -ww it may cut long commands
    done = subprocess.run(command, capture_output=True, text=True)
    fields = [line.split(None, 2) for line in done.stdout.splitlines()[1:]]
    return {int(pid): f"parent {parent}" for pid, parent, args in fields if SCRIPT in args}


def _listed_by_nvitop() -> dict[int, str]:
    """As _listed_by_ps, with the name and the user. Without a GPU nvitop lists the host's alone."""
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


def _until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
