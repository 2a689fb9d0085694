"""Decide when a run counts as hung, and describe it: hang.py explains why."""

import asyncio
import time
from pathlib import Path

from bootcamp.launcher import hang, process_tree
from bootcamp.launcher.requests import COMMAND, RunRequest
from bootcamp.records import flight_recorder, heartbeat, stalled, summary

BUSY_SHARE = 0.05  # of a core, between two looks; threads that wait for others use a hundredth
START_SECONDS = 180  # that a foreign launcher may take to start its ranks
FIRST_SECONDS = 20  # that ranks may take to give their first beat, on a crowded machine
# torchrun's own time-outs, for a host that is silent (15 s) and for late ones (30 s), and a start
MEET_AGAIN_SECONDS = 60
COLLECTIVE_FRAMES = ("distributed_c10d.py", "torch/distributed/", "horovod/torch/mpi_ops.py")
# frames in which a rank waits for a collective if it has one open
WAITING_FRAMES = (
    "torch/autograd/graph.py",
    "torch/nn/parallel/distributed.py",
    "bootcamp/train/record.py",  # loss.item() on a GPU
)
NO_ANSWER = "  (no answer: not in Python, or not started yet)"


class Watchdog:
    """Watches one run.

    It hangs if for `hang_seconds` no rank has finished a step, printed or computed, or if for
    `busy_seconds` none has finished a step or printed.

    pids: its processes, in order of rank where these are ranks.
    """

    def __init__(self, request: RunRequest, pids: list[int]):
        self.request, self.pids = request, pids
        self.folder = Path(request.run)
        now = time.monotonic()
        self._looked = self._stepped = self._printed = self._computed = now
        self._beats: dict[int, tuple] = {}
        self._output_bytes = 0
        self._cpu_seconds: dict[int, float] = {}

    def beats(self) -> dict[int, tuple]:
        """Return of each rank that has given one: (process id, steps done, when)."""
        found = {}
        for path in (self.folder / "ranks").glob("*.beat"):
            if beat := heartbeat.read(path):
                found[int(path.stem)] = beat
        return found

    async def failure(self, ended: dict[int, int], below: set[int]) -> dict | None:
        """Return the failure of ranks that hang, None if they do not.

        ended: the processes that have. below: all processes below those of the run.
        """
        self._look(below)
        now = time.monotonic()
        alive = max(self._stepped, self._printed)
        hang_patience, busy_patience = self._patience()
        if now - max(alive, self._computed) <= hang_patience and now - alive <= busy_patience:
            return None
        beats = self._beats
        ranks = {rank: beat[0] for rank, beat in beats.items()}
        if self.request.start != COMMAND:
            ranks = {rank: pid for rank, pid in enumerate(self.pids) if rank not in ended}
        hang.ask(self.folder, ranks)
        until = time.monotonic() + hang.ANSWER_SECONDS
        while not hang.answered(self.folder, ranks) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        return describe(self.folder, list(ranks), beats, now - self._stepped)

    def _look(self, below: set[int]) -> None:
        """Note steps, output and processor time since the last look."""
        now, beats = time.monotonic(), self.beats()
        if beats != self._beats:
            self._beats, self._stepped = beats, now
        paths = (self.folder / "ranks").rglob("*")
        texts = [path for path in paths if path.suffix in (".out", ".err", ".log")]
        output_bytes = sum(path.stat().st_size for path in texts)
        if output_bytes != self._output_bytes:
            self._output_bytes, self._printed = output_bytes, now
        pids = {*self.pids, *below, *(beat[0] for beat in beats.values())}
        seconds = {pid: process_tree.cpu_seconds(pid) for pid in pids}
        used = max(
            (spent - self._cpu_seconds.get(pid, 0) for pid, spent in seconds.items()), default=0
        )
        if used > BUSY_SHARE * (now - self._looked):
            self._computed = now
        self._cpu_seconds, self._looked = seconds, now

    def _patience(self) -> tuple[float, float]:
        """Return the seconds that idle and busy ranks may take."""
        least = more = 0.0
        if self._may_meet_again():
            more = MEET_AGAIN_SECONDS
        if not self._beats and self.request.start == COMMAND and self.request.ranks:
            least = START_SECONDS
        elif not self._beats and self.request.records:
            least = FIRST_SECONDS
        idle, busy = self.request.hang_seconds + more, self.request.busy_seconds + more
        return max(idle, least), max(busy, least)

    def _may_meet_again(self) -> bool:
        """Return whether torchrun on several hosts may be waiting for one to go or to come."""
        agents = self.request.agents if self.request.hosts > 1 else []
        return self.request.fewest_hosts < len(agents) or any(
            "--max-restarts" in agent.command for agent in agents
        )


def describe(folder: Path, ranks: list[int], beats: dict[int, tuple], silent: float) -> dict:
    """Return the failure of ranks that finish no step, from the stacks and collectives they wrote.

    beats: of each rank that has given one, (process id, steps done, when). silent: seconds.
    """
    stacks = {rank: flight_recorder.stack(folder, rank) or NO_ANSWER for rank in sorted(ranks)}
    answers = hang.answers(folder)
    found = stalled.explain(answers)
    waiting = {rank for rank, stack in stacks.items() if _waits(stack, answers.get(rank))}
    stuck = list(found.ranks) if found.kind != "none" else sorted(set(stacks) - waiting)
    steps = {rank: beats[rank][1] if rank in beats else 0 for rank in stacks}
    subject = f"rank {stuck[0]} hangs" if len(stuck) == 1 and waiting else "the ranks hang"
    where = "\n".join(
        f"rank {rank}, {steps[rank]} steps done"
        f"{', waits for the others' if rank in waiting else ''}:\n{stack}"
        for rank, stack in stacks.items()
    )
    message = f"{subject}: no rank has finished a step for {silent:.0f} s"
    if found.kind != "none":
        message += f". {found.sentence[0].upper()}{found.sentence[1:]}"
        where = f"{found.table}\n\n{where}"
    message += ". If a step may take so long, launch with a larger Options(hang_seconds=)"
    return summary.failure(stuck[0] if len(stuck) == 1 else None, "hang", message, where)


def _waits(stack: str, rank: stalled.Rank | None) -> bool:
    """Return whether a rank's innermost frames are in a collective, or where it waits for one."""
    frames = COLLECTIVE_FRAMES
    if rank and rank.standing_in:
        frames += WAITING_FRAMES
    return any(frame in line for line in stack.splitlines()[:2] for frame in frames)
