"""Whether the ranks of a run still get on: their beats, their processor time, their stacks."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from bootcamp.launcher import diagnose, process_tree
from bootcamp.records import heartbeat

START_SECONDS = 180  # that a foreign launcher may take to start its ranks
FIRST_SECONDS = 20  # that ranks may take to give their first beat, on a crowded machine
STACK_SECONDS = 0.5  # faulthandler writes at once, but each rank must get a core


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
        if self.request["start"] == "command" and self.request["ranks"] and not beats:
            patience = max(patience, START_SECONDS)
        elif self.request["records"] and not beats:
            patience = max(patience, FIRST_SECONDS)
        if silent <= patience:
            return None
        ranks = {rank: beat[0] for rank, beat in beats.items()}
        if self.request["start"] != "command":
            ranks = {rank: pid for rank, pid in enumerate(self.pids) if rank not in ended}
        for pid in ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        await asyncio.sleep(STACK_SECONDS)
        return diagnose.hang(self.folder, list(ranks), beats, silent)
