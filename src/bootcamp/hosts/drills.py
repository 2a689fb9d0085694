"""Break something while a run over simulated hosts goes on.

    with drills.running("ddp", 4, hosts=2, start="torchrun", steps=200) as run:
        run.wait_for_step(10)
        run.hosts[1].cut(seconds=5)
    run.ended                       # its record

What breaks is real: signals to real processes, an interface that is down, a filter, a full disk.
One thing can't be broken here: a host's clock. All hosts have the kernel's, and Linux has a time
namespace for the clocks that count from the boot, not for the time of day. Compare clocks instead.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from bootcamp.files import read_json
from bootcamp.launcher import launch, process_tree, simulated_hosts
from bootcamp.launcher.connection import connect
from bootcamp.launcher.follow import follow
from bootcamp.launcher.messages import RunRequest
from bootcamp.records import places
from bootcamp.records.runs import Run
from bootcamp.records.steps import read_steps

POLL_SECONDS = 0.02


class TooLate(Exception):
    """The run ended, or the time did, before what was waited for had come."""


class Host:
    """One host of a run that goes on. Its methods act at once."""

    def __init__(self, running: "Running", number: int):
        self._running, self.number, self.name = running, number, simulated_hosts.name(number)

    @property
    def _place(self) -> dict:
        return self._running.places()["hosts"][self.number]

    def run(self, command: list[str]) -> str:
        """Run any command on this host; what it printed. Raises subprocess.CalledProcessError."""
        inside = simulated_hosts.enter_command(self._place, command)
        return subprocess.run(inside, check=True, capture_output=True, text=True).stdout

    def processes(self) -> set[int]:
        """All processes on this host: in its network namespace, but for the one that keeps it."""
        keeps, found = self._place["pid"], set()
        namespace = os.readlink(f"/proc/{keeps}/ns/net")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/net") == namespace:
                    found.add(int(pid))
        return found - {keeps}

    def ranks(self) -> dict[int, int]:
        """The ranks that live on this host; {rank: process id}."""
        rows = [row for row in self._running.places()["ranks"] if row["host"] == self.name]
        return {row["rank"]: row["pid"] for row in rows if process_tree.alive(row["pid"])}

    def kill(self) -> None:
        """End the host as a power cut does: all of its processes at once, torchrun's too.

        The kernel closes their connections, so that the other hosts hear of it. After a real power
        cut nobody does that, and they wait for their time-out: cut the link first to see it.
        """
        while found := self.processes():
            for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody reports another's end
                self._signal(found, number)
            time.sleep(POLL_SECONDS)

    def join(self) -> None:
        """Start torchrun here: on a host that was absent, or that comes back after a kill."""
        connect().send("join", str(self._running.folder), host=self.number)

    def freeze(self, seconds: float) -> None:
        """Stop all of its processes for so long, as a host that swaps or a slow disk does."""
        found = self.processes()
        self._signal(found, signal.SIGSTOP)
        time.sleep(seconds)
        self._signal(found, signal.SIGCONT)

    def cut(self, seconds: float) -> None:
        """Take its link down for so long: what is sent meanwhile is lost, and sent again by TCP."""
        self.run(["ip", "link", "set", simulated_hosts.INTERFACE, "down"])
        time.sleep(seconds)
        self.run(["ip", "link", "set", simulated_hosts.INTERFACE, "up"])

    def slow(self, rate: str) -> None:
        """From now on it sends no faster than this, such as "20mbit"."""
        self.run(simulated_hosts.link_command(rate))

    def small_disk(self, folder: Path | str, size: str) -> None:
        """Lay an empty disk of this size ("64k") over a folder, as this host sees it."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(folder)])

    @staticmethod
    def _signal(pids: set[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Running:
    """A run that goes on in the background. `ended` is its record, None as long as it goes on."""

    def __init__(self, request: RunRequest, show):
        self.folder, self.ended, self._raised = Path(request.run), None, None
        self.hosts = [Host(self, number) for number in range(request.hosts)]
        self._thread = threading.Thread(target=self._follow, args=(request, show))
        self._thread.start()

    def _follow(self, request: RunRequest, show) -> None:
        try:
            self.ended = follow(request, show, raises=False)
        except BaseException as error:
            self._raised = error

    def places(self) -> dict:
        """Hosts, agents and ranks by now: see job_hosts.py."""
        return {"hosts": [], "agents": {}, "ranks": [], **read_json(self.folder / places.FILE)}

    def wait_for(self, what, seconds: float = 120.0):
        """Wait until `what()` is true; its value. Raises TooLate."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise TooLate(f"{Run(self.folder)!r}\n{Run(self.folder).log()[-3000:]}")
            time.sleep(POLL_SECONDS)
        return found

    def wait_for_step(self, step: int, world: int | None = None, seconds: float = 120.0) -> None:
        """Wait until this step is done, by so many ranks if that is said."""

        def done() -> bool:
            ranks = sum(len(host.ranks()) for host in self.hosts) if world else None
            return self.steps() > step and ranks == world

        self.wait_for(done, seconds)

    def steps(self) -> int:
        """The steps that are done and recorded."""
        return len(read_steps(self.folder))

    def kill_rank(self, rank: int) -> None:
        """kill -9 of one rank, wherever it is."""
        for host in self.hosts:
            if pid := host.ranks().get(rank):
                os.kill(pid, signal.SIGKILL)

    def wait(self) -> Run:
        """Wait for the end; the record, whatever it says."""
        self._thread.join()
        if self._raised:
            raise self._raised
        return self.ended

    def stop(self) -> None:
        """End it now."""
        connect().send("stop", str(self.folder), why="interrupted")
        self._thread.join()


@contextlib.contextmanager
def running(
    script: str | Path,
    ranks: int,
    *,
    hosts: int,
    start: str = "torchrun",
    link: str | None = None,
    absent: tuple[int, ...] = (),
    quiet: bool = False,
    options: launch.Options = launch.Options(),  # noqa: B008 (frozen)
    **flags,
):
    """Launch in the background, over hosts; a Running. At the end of the block the run is awaited.

    absent: hosts without a torchrun at first, which join later. The others are launch's. An
    exception or an interrupt within the block ends the run.
    """
    call = launch.Call(script, ranks, None, "cpu", start, hosts, link, quiet, options, flags)
    request, show = call.prepare()
    request.absent = list(absent)
    run = Running(request, show)
    try:
        yield run
        run.wait()
    except BaseException:
        run.stop()
        raise
