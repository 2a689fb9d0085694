"""The hosts of one run: made before its start, known while it goes on, gone after its end.

Which rank is on which host, in which process, is in `hosts.json` in the run's folder:

    {"hosts": [a process in each], "namespaces": [what each of them has of its own],
     "agents": {"host0": process id of its torchrun, ...},
     "ranks": [{"rank": 0, "host": "host0", "local_rank": 0, "attempt": 0, "pid": ...}, ...]}

It is written while the run goes on; a rank that torchrun starts anew gets another line.
"""

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

from bootcamp import files
from bootcamp.launcher import process_tree, simulated_hosts
from bootcamp.launcher.messages import Command, RunRequest
from bootcamp.launcher.simulated_hosts import KINDS, HostsError
from bootcamp.records import places


class JobHosts:
    """The hosts of one run, and the ranks on them. Without hosts all of it does nothing."""

    def __init__(self, request: RunRequest):
        self.request, self.folder = request, Path(request.run)
        self.made: list[dict] = []
        self.holder = None  # the process that holds them
        self.agents: dict[str, int] = {}  # host -> process of its torchrun
        self._namespaces: list[str] = []
        self._ranks: dict[int, dict] = {}  # by process id, in the order in which they were seen

    async def make(self) -> None:
        """Start the process that holds the hosts. Raises HostsError."""
        if self.request.hosts == 1:
            return
        self.holder = await asyncio.create_subprocess_exec(
            *simulated_hosts.make_command(self.request.hosts, self.request.link),
            stdin=subprocess.PIPE,  # stays open as long as the run
            stdout=subprocess.PIPE,
            env={**os.environ, "BOOTCAMP_RUN": self.request.run},
            start_new_session=True,
        )
        said = (await self.holder.stdout.readline()).decode()
        try:
            self.made = simulated_hosts.hosts_in(said)
        except HostsError as error:
            raise HostsError(f"hosts={self.request.hosts}: {error}") from None
        own = [f"/proc/{host['pid']}/ns/{kind}" for host in self.made for kind in KINDS]
        self._namespaces = [os.readlink(path) for path in own]

    def of_rank(self, rank: Command) -> dict | None:
        """The host that a rank is to be started on."""
        return self.made[int(rank.env["GROUP_RANK"])] if self.made else None

    def note_ranks(self, pids: list[int]) -> None:
        """Note the ranks that the launcher has itself started on hosts, in order of rank."""
        if not self.made:
            return
        for number, (pid, rank) in enumerate(zip(pids, self.request.ranks, strict=True)):
            local_rank = int(rank.env["LOCAL_RANK"])
            self._add(pid, number, self.of_rank(rank)["name"], local_rank, 0)
        self._write()

    def note_agent(self, host: str, pid: int) -> None:
        """Note the torchrun of a host."""
        self.agents[host] = pid
        self._write()

    def look(self) -> None:
        """Find the ranks that torchrun has started: their environment says which they are."""
        before = len(self._ranks)
        for host, agent in self.agents.items():
            for pid in process_tree.below({agent}) - set(self._ranks):
                said = process_tree.environment(pid)
                if said.get("RANK", "").isdigit() and "GROUP_RANK" in said:
                    attempt = int(said.get("TORCHELASTIC_RESTART_COUNT", 0))
                    self._add(pid, int(said["RANK"]), host, int(said["LOCAL_RANK"]), attempt)
        if len(self._ranks) > before:
            self._write()

    def _add(self, pid: int, rank: int, host: str, local_rank: int, attempt: int) -> None:
        row = {"rank": rank, "host": host, "local_rank": local_rank, "attempt": attempt}
        self._ranks[pid] = {**row, "pid": pid}

    def _write(self) -> None:
        content = {"hosts": self.made, "namespaces": self._namespaces, "agents": self.agents}
        content["ranks"] = list(self._ranks.values())
        files.write_json(self.folder / places.FILE, content)

    def collect(self) -> None:
        """Give what each rank wrote last the name that it has in every run: ranks/<rank>.err."""
        ranks = self.folder / "ranks"
        for row in self._ranks.values():
            within = f"{row['host']}/*/attempt_{row['attempt']}/{row['local_rank']}"
            for end, name in (("out", "stdout.log"), ("err", "stderr.log")):
                for path in ranks.glob(f"{within}/{name}"):
                    link = ranks / f"{row['rank']}.{end}"
                    link.unlink(missing_ok=True)
                    link.hardlink_to(path)

    async def end(self, seconds: float) -> None:
        """Wait until their holder, which has been told, has ended."""
        if self.holder:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.holder.wait(), seconds)
