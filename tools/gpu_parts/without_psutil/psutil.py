"""What the launcher and the record ask of psutil, read from /proc: for Pythons without psutil.

gpu_record.py puts this folder on the path where psutil is not installed, and nowhere else: GPU
machines that can't install packages have torch and numpy, and often nothing more. Linux only.
Whatever is not here raises AttributeError.
"""

import os
from pathlib import Path
from types import SimpleNamespace

STATUS_ZOMBIE = "zombie"
TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Error(Exception):
    """A process can't be asked."""


class NoSuchProcess(Error):
    """It is not there."""


class AccessDenied(Error):
    """It is another user's."""


class Process:
    """A process by its number, this one without. Raises NoSuchProcess, AccessDenied."""

    def __init__(self, pid: int | None = None):
        self.pid = os.getpid() if pid is None else pid
        if not pid_exists(self.pid):
            raise NoSuchProcess(f"process {self.pid} is gone")

    def _read(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_text(errors="surrogateescape")
        except PermissionError as error:
            raise AccessDenied(str(error)) from None
        except OSError as error:
            raise NoSuchProcess(str(error)) from None

    def _stat(self) -> list[str]:
        """The fields from `state` on (proc(5)): ppid is 1, threads 17, the start 19."""
        return self._read("stat").rpartition(")")[2].split()

    def status(self) -> str:
        return STATUS_ZOMBIE if self._stat()[0] == "Z" else "other"

    def ppid(self) -> int:
        return int(self._stat()[1])

    def num_threads(self) -> int:
        return int(self._stat()[17])

    def create_time(self) -> float:
        """In seconds since 1970."""
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
        return boot + int(self._stat()[19]) / TICK

    def cpu_times(self) -> SimpleNamespace:
        """Seconds of it and of children that it waited for."""
        names = ("user", "system", "children_user", "children_system")
        ticks = map(int, self._stat()[11:15])
        return SimpleNamespace(**{n: t / TICK for n, t in zip(names, ticks, strict=True)})

    def memory_info(self) -> SimpleNamespace:
        """vms, rss: bytes of address space, and of it what is in memory."""
        vms, rss, *_ = (int(pages) * PAGE for pages in self._read("statm").split())
        return SimpleNamespace(vms=vms, rss=rss)

    def environ(self) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in self._read("environ").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def cmdline(self) -> list[str]:
        return self._read("cmdline").rstrip("\0").split("\0")

    def open_files(self) -> list[SimpleNamespace]:
        files = Path(f"/proc/{self.pid}/fd").glob("*")
        return [SimpleNamespace(path=os.path.realpath(file)) for file in files]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def pid_exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def process_iter(asked: list[str]):
    """Every process with `info`, a dictionary; None in it for what may not be read."""
    for pid in pids():
        try:
            process = Process(pid)
            process.info = {name: _or_none(process, name) for name in asked}
        except NoSuchProcess:
            continue
        yield process


def _or_none(process: Process, name: str):
    try:
        return process.pid if name == "pid" else getattr(process, name)()
    except AccessDenied:
        return None
