"""Break something while a run over simulated hosts goes on.

    with drills.BackgroundRun("ddp", 4, hosts=2, start="torchrun", steps=200) as run:
        run.wait_for_step(10, ranks=4)
        run.hosts[1].cut(seconds=5)
    run.record

What breaks is real: processes get signals, an interface goes down, packets are dropped, a disk is
full. Only a host's clock can't be broken here: all hosts share the kernel's.
"""

import contextlib
import os
import signal
import subprocess
import time
from concurrent import futures
from pathlib import Path

from bootcamp.files import read_json
from bootcamp.launcher import launch, process_tree, simulated_hosts
from bootcamp.launcher.connection import connect, follow
from bootcamp.records import heartbeat
from bootcamp.records.rank_errors import HOSTS_FILE
from bootcamp.records.runs import Run
from bootcamp.records.steps import read_steps

POLL_SECONDS = 0.02
WAIT_SECONDS = 120


class Host:
    """A simulated host of a live run. Methods act at once; freeze and cut return at the end."""

    def __init__(self, running: "BackgroundRun", number: int):
        self._running, self.number, self.name = running, number, simulated_hosts.name(number)

    @property
    def _entry(self) -> dict:
        return self._running.read_hosts_file()["hosts"][self.number]

    def run(self, command: list[str]) -> str:
        """Run a command on this host and return its output. Raises CalledProcessError."""
        inside = simulated_hosts.enter_command(self._entry, command)
        return subprocess.run(inside, check=True, capture_output=True, text=True).stdout

    def find_processes(self) -> set[int]:
        """Find all processes in its network namespace, except the one that keeps it alive."""
        found = simulated_hosts.find_processes(self._entry["namespaces"]["net"])
        return found.keys() - {self._entry["pid"]}

    def find_ranks(self) -> dict[int, int]:
        """Return {rank: process id} of the ranks that live on this host."""
        rows = [row for row in self._running.read_hosts_file()["ranks"] if row["host"] == self.name]
        return {row["rank"]: row["pid"] for row in rows if process_tree.is_alive(row["pid"])}

    def kill(self) -> None:
        """End the host as a power cut does: all of its processes at once, torchrun's too.

        The kernel closes their connections, so the other hosts notice. After a real power cut they
        wait for their timeout: to see that, take the interface down first, as cut does.
        """
        while found := self.find_processes():
            # stop all of them first, so that none reports another's death
            for number in (signal.SIGSTOP, signal.SIGKILL):
                process_tree.send_signal(found, number)
            time.sleep(POLL_SECONDS)

    def join(self) -> None:
        """Start torchrun on this host: it was absent, or comes back after a kill."""
        connect().send("join", str(self._running.folder), host=self.number)

    def freeze(self, seconds: float) -> None:
        """Stop all of its processes for some seconds, as swapping or a slow disk does."""
        found = self.find_processes()
        process_tree.send_signal(found, signal.SIGSTOP)
        time.sleep(seconds)
        process_tree.send_signal(found, signal.SIGCONT)

    def cut(self, seconds: float) -> None:
        """Take the host's link down for some seconds; TCP resends what was lost meanwhile."""
        self.run(["ip", "link", "set", simulated_hosts.INTERFACE, "down"])
        time.sleep(seconds)
        self.run(["ip", "link", "set", simulated_hosts.INTERFACE, "up"])

    def mount_small_disk(self, folder: Path | str, size: str) -> None:
        """Mount an empty disk of this size ("64k") over a folder, which only this host sees."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(folder)])


class BackgroundRun(contextlib.AbstractContextManager):
    """A run over simulated hosts, in the background while a `with` block goes on.

    Leaving the block waits for the run, whose record is then `record`; an exception or an interrupt
    in the block ends the run. absent: numbers of hosts that start without torchrun (Host.join). The
    other arguments are launch's, and the script's flags.
    """

    def __init__(self, script, ranks, *, hosts, start="torchrun", absent=(), quiet=False, **flags):
        options = flags.pop("options", launch.Options())
        how = {"start": start, "hosts": hosts, "quiet": quiet, "options": options, "flags": flags}
        request, show = launch.Call(script, ranks, **how).prepare()
        request.absent = list(absent)
        self.folder, self.record = Path(request.run), None
        self.hosts = [Host(self, number) for number in range(hosts)]
        self._followed = futures.ThreadPoolExecutor(1).submit(follow, request, show, raises=False)

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                futures.wait([self._followed])
        finally:
            if not self._followed.done():
                connect().send("stop", str(self.folder), why="interrupted")
            self.record = self._followed.result()

    def read_hosts_file(self) -> dict:
        """Read hosts.json: the hosts, torchruns ("agents") and ranks so far; see supervisor.py."""
        return {"hosts": [], "agents": {}, "ranks": [], **read_json(self.folder / HOSTS_FILE)}

    def wait_for(self, condition) -> None:
        """Wait until `condition()`. Raises TimeoutError after two minutes, or if the run ends."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if self._followed.done() or time.monotonic() > deadline:
                raise TimeoutError(f"{Run(self.folder)!r}\n{Run(self.folder).log()[-3000:]}")
            time.sleep(POLL_SECONDS)

    def wait_for_step(self, step: int, ranks: int) -> None:
        """Wait until this step, counted from 0, is recorded and exactly `ranks` ranks are alive."""
        self.wait_for(lambda: len(read_steps(self.folder)) > step)
        self.wait_for(lambda: sum(len(host.find_ranks()) for host in self.hosts) == ranks)

    def count_finished_steps(self, ranks: int) -> int:
        """Count the steps that each of the ranks has finished, by their heartbeats."""
        beats = heartbeat.read_all(self.folder)
        return min(beats[rank][1] if rank in beats else 0 for rank in range(ranks))

    def kill_rank(self, rank: int) -> None:
        """Kill one rank with SIGKILL, wherever it is."""
        pids = {row["rank"]: row["pid"] for row in self.read_hosts_file()["ranks"]}
        os.kill(pids[rank], signal.SIGKILL)
