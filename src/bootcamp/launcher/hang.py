"""python -m bootcamp.launcher.hang logs/<run>

When a run counts as hung, and why it hangs: each of its ranks is asked where it stands, and what
they answer is laid side by side. In a notebook `hang.read(run)`. On several machines a process can
be asked only on its own, so start it on all of them, with a folder for records that they share:

    srun --overlap --jobid JOB --ntasks-per-node 1 python -m bootcamp.launcher.hang logs/<run>

After a run has ended, it reads what was answered then: when the launcher found it hanging, or when
an exception ended its ranks. It knows the processes of runs that beat (record.Run, external.Run).
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from bootcamp.files import read_json
from bootcamp.launcher import process_tree
from bootcamp.launcher.messages import COMMAND, RunRequest
from bootcamp.records import flight_recorder, heartbeat, stalled, summary
from bootcamp.records.runs import Run
from bootcamp.records.stalled import Standstill

ANSWER_SECONDS = 3.0  # 2000 collectives take a fifth of a second, on a core that nobody shares
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


def read(run: Run | Path | str) -> Standstill:
    """Ask the ranks of a run that goes on on this machine, and say why they do not get on.

    run: the record or its folder. Asking stops no rank: what it computes goes on meanwhile. Ranks
    that do get on have collectives open as well, so ask when no step has ended for a while.
    Raises FileNotFoundError where the folder holds no run.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    if not (folder / "ranks").exists():
        raise FileNotFoundError(f"{folder} holds no run: there are no ranks in it.")
    if pids := processes(folder):
        ask(folder, pids, range(_started(folder)))
    return stalled.explain(answers(folder, pids))


def processes(folder: Path) -> dict[int, int]:
    """The process of each rank that is alive on this machine."""
    here = {rank: beat[0] for rank, beat in beats(folder).items()}
    place = folder / "ranks"
    return {rank: pid for rank, pid in here.items() if process_of(pid, place / f"{rank}.beat")[0]}


def beats(folder: Path) -> dict[int, tuple]:
    """Of each rank that has given one: (process id, steps done, when)."""
    paths = (folder / "ranks").glob("*.beat")
    return {int(path.stem): beat for path in paths if (beat := heartbeat.read(path))}


def process_of(number: int, beat: Path) -> tuple[bool | None, int | None]:
    """Whether this process is the rank of this beat, None where that can't be seen; its memory.

    A rank keeps the file of its beats open, so a process that was given the same number later, or
    one of another machine, is not mistaken for it.
    """
    try:
        process = psutil.Process(number)
        here = str(beat.resolve()) in [file.path for file in process.open_files()]
        return here, process.memory_info().rss if here else None
    except psutil.NoSuchProcess:
        return False, None
    except (psutil.Error, OSError):
        return None, None


def ask(folder: Path, pids: dict[int, int], everybody: Iterable[int] = ()) -> None:
    """Ask these processes where they stand, and wait a while for the answers, also of others."""
    flight_recorder.forget(folder, pids)
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + ANSWER_SECONDS
    expected = [flight_recorder.path_of(folder, rank) for rank in {*pids, *everybody}]
    while not all(path.exists() for path in expected) and time.monotonic() < deadline:
        time.sleep(0.05)  # the stack is written before the collectives


def answers(folder: Path, alive: Iterable[int] = ()) -> dict[int, stalled.Rank]:
    """Return what each rank has answered. alive: the ranks that have a process here."""
    dumps = flight_recorder.read(folder)
    gone = _gone(folder, set(alive))
    stacks = {int(path.stem) for path in (folder / "ranks").glob("*.stack")}
    ranks = {}
    for number in sorted({*range(_started(folder)), *stacks, *dumps, *gone}):
        stands = stalled.stack_line(flight_recorder.stack(folder, number))
        ranks[number] = stalled.rank_of(dumps.get(number), stands, gone.get(number))
    return ranks


def _started(folder: Path) -> int:
    """The number of ranks, 0 where the record does not say."""
    return read_json(folder / "config.json").get("processes", 0)


def _gone(folder: Path, alive: set[int]) -> dict[int, str]:
    """How ranks have ended, as the launcher wrote it or as it is seen on this machine.

    Seen only if all hosts are this machine: another's processes can't be looked up here.
    """
    error = summary.read(folder).get("error") or {}
    if error.get("kind") == "killed" and error["rank"] is not None:
        return {error["rank"]: error["message"].partition(",")[0]}
    config = read_json(folder / "config.json")
    here = config.get("hosts", 1) == 1 or config.get("link")
    return dict.fromkeys({*range(_started(folder))} - alive, "is gone") if alive and here else {}


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
        ranks = {rank: beat[0] for rank, beat in self._beats.items()}
        if self.request.start != COMMAND:
            ranks = {rank: pid for rank, pid in enumerate(self.pids) if rank not in ended}
        await asyncio.to_thread(ask, self.folder, ranks)
        return self._describe(sorted(ranks), now - self._stepped)

    def _look(self, below: set[int]) -> None:
        """Note steps, output and processor time since the last look."""
        now, found = time.monotonic(), beats(self.folder)
        if found != self._beats:
            self._beats, self._stepped = found, now
        paths = (self.folder / "ranks").rglob("*")
        texts = [path for path in paths if path.suffix in (".out", ".err", ".log")]
        output_bytes = sum(path.stat().st_size for path in texts)
        if output_bytes != self._output_bytes:
            self._output_bytes, self._printed = output_bytes, now
        pids = {*self.pids, *below, *(beat[0] for beat in found.values())}
        seconds = {pid: process_tree.cpu_seconds(pid) for pid in pids}
        used = [spent - self._cpu_seconds.get(pid, 0) for pid, spent in seconds.items()]
        if max(used, default=0) > BUSY_SHARE * (now - self._looked):
            self._computed = now
        self._cpu_seconds, self._looked = seconds, now

    def _patience(self) -> tuple[float, float]:
        """Return the seconds that idle and busy ranks may take."""
        request, least = self.request, 0.0
        if not self._beats and request.start == COMMAND and request.ranks:
            least = START_SECONDS
        elif not self._beats and request.records:
            least = FIRST_SECONDS
        # torchrun on several hosts may be waiting for one to go or to come
        agents = request.agents if request.hosts > 1 else []
        restarts = any("--max-restarts" in agent.argv for agent in agents)
        more = MEET_AGAIN_SECONDS if restarts or request.fewest_hosts < len(agents) else 0.0
        return max(request.hang_seconds + more, least), max(request.busy_seconds + more, least)

    def _describe(self, ranks: list[int], silent: float) -> dict:
        """The failure of ranks that finish no step, from the stacks and collectives they wrote."""
        stacks = {rank: flight_recorder.stack(self.folder, rank) or NO_ANSWER for rank in ranks}
        answered = answers(self.folder)
        found = stalled.explain(answered)
        waiting = {rank for rank, stack in stacks.items() if _waits(stack, answered.get(rank))}
        stuck = list(found.ranks) if found.kind != "none" else sorted(set(ranks) - waiting)
        subject = f"rank {stuck[0]} hangs" if len(stuck) == 1 and waiting else "the ranks hang"
        where = "\n".join(
            f"rank {rank}, {self._beats[rank][1] if rank in self._beats else 0} steps done"
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
    """Whether a rank's innermost frames are in a collective, or where it waits for one."""
    frames = COLLECTIVE_FRAMES
    if rank and rank.standing_in:
        frames += WAITING_FRAMES
    return any(frame in line for line in stack.splitlines()[:2] for frame in frames)


if __name__ == "__main__":
    print(read(*sys.argv[1:]) if len(sys.argv) == 2 else __doc__)
