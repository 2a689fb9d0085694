"""Whether the ranks of a run still get on: their beats, their processor time, their stacks."""

import asyncio
import time
from pathlib import Path

from bootcamp.launcher import diagnose, hang, process_tree
from bootcamp.records import heartbeat

START_SECONDS = 180  # that a foreign launcher may take to start its ranks
FIRST_SECONDS = 20  # that ranks may take to give their first beat, on a crowded machine
# torchrun's own time-outs, for a host that is silent (15 s) and for late ones (30 s), and a start
MEET_AGAIN_SECONDS = 60


class SignsOfLife:
    """Recognises a hang: no step for `hang_seconds`, or `busy_seconds` while the ranks compute.

    request: of the run, see job.Job. pids: its processes, in order of rank where these are ranks.
    """

    def __init__(self, request: dict, pids: list[int]):
        self.request, self.pids = request, pids
        self.folder = Path(request["run"])
        self._last, self._last_cpu_seconds = time.monotonic(), 0.0
        self._last_beats: dict = {}

    def beats(self) -> dict[int, tuple]:
        """Of each rank that has given one: (process id, steps done, when)."""
        found = {}
        for path in (self.folder / "ranks").glob("*.beat"):
            if beat := heartbeat.read(path):
                found[int(path.stem)] = beat
        return found

    def _may_meet_again(self) -> bool:
        """Whether torchrun on several hosts may be waiting for one to go or to come."""
        agents = self.request.get("agents", ())
        return any("--max-restarts" in agent["command"] for agent in agents) or (
            self.request.get("fewest_hosts", 0) < len(agents)
        )

    async def failure(self, ended: dict[int, int]) -> dict | None:
        """What to say of ranks that hang, None if they do not. ended: the processes that have."""
        beats = self.beats()
        pids = {*self.pids, *(beat[0] for beat in beats.values())}
        cpu_seconds = sum(process_tree.cpu_seconds(pid) for pid in pids)
        if beats != self._last_beats:
            self._last_beats, self._last_cpu_seconds = beats, cpu_seconds
            self._last = time.monotonic()
        silent = time.monotonic() - self._last
        busy = cpu_seconds - self._last_cpu_seconds > 0.2 * silent
        patience = self.request["busy_seconds" if busy else "hang_seconds"]
        patience += MEET_AGAIN_SECONDS * self._may_meet_again()
        if self.request["start"] == "command" and self.request["ranks"] and not beats:
            patience = max(patience, START_SECONDS)
        elif self.request["records"] and not beats:
            patience = max(patience, FIRST_SECONDS)
        if silent <= patience:
            return None
        ranks = {rank: beat[0] for rank, beat in beats.items()}
        if self.request["start"] != "command":
            ranks = {rank: pid for rank, pid in enumerate(self.pids) if rank not in ended}
        hang.ask(self.folder, ranks)
        until = time.monotonic() + hang.ANSWER_SECONDS
        while not hang.answered(self.folder, ranks) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        return diagnose.hang(self.folder, list(ranks), beats, silent)
