"""The hosts of one run: made before its start, known while it goes on, gone after its end.

Which rank is on which host, in which process, is in `hosts.json` in the run's folder:

    {"hosts": [how to enter each], "namespaces": [what each of them has of its own],
     "agents": {"host0": process id of its torchrun, ...},
     "ranks": [{"rank": 0, "host": "host0", "local_rank": 0, "attempt": 0, "pid": ...}, ...]}

It is written while the run goes on; a rank that torchrun starts anew gets another line.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from bootcamp import files
from bootcamp.launcher import children, process_tree, simulated_hosts, subreaper
from bootcamp.launcher.requests import RunRequest
from bootcamp.launcher.simulated_hosts import KINDS
from bootcamp.records import places


class JobHosts:
    """The hosts of one run, and torchrun on each of them. Without hosts all of it does nothing.

    request: of the run.
    """

    def __init__(self, request: RunRequest):
        self.request, self.folder = request, Path(request.run)
        self.made: list[dict] = []
        self.holder = None  # the process that holds them
        self._namespaces: list[str] = []
        self.agents: dict[int, int] = {}  # process of a torchrun, by its place in the job -> host
        self._pids: dict[str, int] = {}  # host -> its torchrun
        self._ranks: dict[int, dict] = {}  # by process id, in the order in which they were seen

    async def make(self) -> None:
        """Start the process that holds the hosts, and tell each rank its own. Raises HostsError."""
        if self.request.hosts == 1:
            return
        self.holder = await asyncio.create_subprocess_exec(
            *simulated_hosts.make_command(self.request.hosts, self.request.link),
            stdin=subprocess.PIPE,  # stays open as long as the run
            stdout=subprocess.PIPE,
            env={**os.environ, "BOOTCAMP_RUN": self.request.run},
            start_new_session=True,
        )
        self.made = simulated_hosts.hosts_in((await self.holder.stdout.readline()).decode())
        self._namespaces = [os.readlink(host[kind]) for host in self.made for kind in KINDS]
        for rank in self.request.ranks:
            rank.host = self.made[rank.host]

    def ranks_are(self, pids: list[int]) -> None:
        """Note ranks that the launcher has itself started on hosts, in order of rank."""
        for rank, pid in enumerate(pids if self.made else ()):
            request = self.request.ranks[rank]
            local_rank = int(request.env["LOCAL_RANK"])
            self._add(pid, rank, request.host["name"], local_rank, 0)
        if self.made:
            self._write()

    def start_agent(self, host: int, index: int) -> int:
        """Start torchrun on one host; its process id. index: its place in the job."""
        agent = self.request.agents[host]
        pid = start_command(self.folder, agent.command, agent.env, self.made[host])
        self.agents[index], self._pids[self.made[host]["name"]] = host, pid
        self._write()
        return pid

    def may_join(self, host: int, codes: dict[int, int]) -> bool:
        """Whether there is no torchrun on this host, or its last one has ended; forgets that."""
        here = [index for index, agent in self.agents.items() if agent == host]
        if not all(index in codes for index in here):
            return False
        for index in here:
            del self.agents[index]
        return True

    def codes(self, codes: dict[int, int]) -> dict:
        """Exit codes in the order of the ends: by rank, or by host where each has a torchrun."""
        if not self.agents:
            return codes
        names = {index: self.made[host]["name"] for index, host in self.agents.items()}
        return {names[index]: code for index, code in codes.items() if index in names}

    @property
    def spare(self) -> int:
        """How many hosts the run can lose and go on."""
        return len(self.agents) and len(self.request.agents) - self.request.fewest_hosts

    def look(self) -> None:
        """Find the ranks that torchrun has started: their environment says which they are."""
        before = len(self._ranks)
        for host, agent in self._pids.items():
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
        ranks = list(self._ranks.values())
        content = {"hosts": self.made, "namespaces": self._namespaces}
        files.write_json(
            self.folder / places.FILE, {**content, "agents": self._pids, "ranks": ranks}
        )

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


def start_command(folder: Path, command: list[str], env: dict, host: dict | None = None) -> int:
    """Start a foreign launcher, or any command, under a subreaper; its process id.

    host: the simulated host to start it in. Its output goes to ranks/launcher.out and .err, over
    hosts to <host>.out and .err.
    """
    command = [sys.executable, "-P", subreaper.__file__, *command]
    name = "launcher"
    if host:
        command, name = simulated_hosts.enter_command(host, command), host["name"]
    ranks = folder / "ranks"
    env = {**os.environ, **env, "BOOTCAMP_RUN": str(folder)}
    return children.spawn(command, env, ranks / f"{name}.out", ranks / f"{name}.err")
