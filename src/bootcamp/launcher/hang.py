"""python -m bootcamp.launcher.hang logs/<run>

Decide when a run counts as hung, and say why: ask each rank where it stands, and compare the
answers. In a notebook `hang.read(run)`. On several machines, which share the records' folder:

    srun --overlap --jobid JOB --ntasks-per-node 1 python -m bootcamp.launcher.hang logs/<run>

After a run has ended, it reads what was answered then. It knows the processes of runs that beat.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from bootcamp.files import read_json
from bootcamp.launcher import process_tree
from bootcamp.launcher.run_request import RunRequest
from bootcamp.records import flight_recorder, heartbeat, standstill, summary
from bootcamp.records.runs import Run
from bootcamp.records.standstill import Standstill

ANSWER_SECONDS = 3.0  # 2000 collectives take a fifth of a second, on a core that nobody shares
BUSY_SHARE = 0.05  # of a core, between two looks; threads that wait for others use a hundredth
START_SECONDS = 180  # that a foreign launcher may take to start its ranks
FIRST_SECONDS = 20  # that ranks may take to give their first beat, on a crowded machine
# innermost frames in which a rank waits for a collective; the second, if it has one open: on a GPU
# record.py waits in loss.item()
COLLECTIVE_FRAMES = ("distributed_c10d.py", "torch/distributed/", "horovod/torch/mpi_ops.py")
WAITING_FRAMES = ("torch/autograd/graph.py", "torch/nn/parallel/distributed.py", "train/record.py")
NO_ANSWER = "  (no answer: not in Python, or not started yet)"


def read(run: Run | Path | str) -> Standstill:
    """Ask the ranks of a live run on this machine where they are; explain why the run hangs.

    Ask when no step has ended for a while; it stops no rank. Raises FileNotFoundError.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    if not (folder / "ranks").exists():
        raise FileNotFoundError(f"{folder} holds no run: there are no ranks in it.")
    if pids := find_processes(folder):
        ask(folder, pids, range(_count_ranks(folder)))
    return standstill.explain(_read_answers(folder, set(pids)))


def find_processes(folder: Path) -> dict[int, int]:
    """Return {rank: process id} of the ranks that are alive on this machine."""
    pids = {rank: beat[0] for rank, beat in heartbeat.read_all(folder).items()}
    beats = {rank: folder / "ranks" / f"{rank}.beat" for rank in pids}
    return {rank: pid for rank, pid in pids.items() if inspect_process(pid, beats[rank])[0]}


def inspect_process(number: int, beat: Path) -> tuple[bool | None, int | None]:
    """Look up a process: whether it is the rank of this beat, its memory in bytes; None if unseen.

    A rank keeps its beats' file open, so that no later process of its number is taken for it.
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
    """Ask these ranks' processes where they are; wait some seconds for the answers of all ranks."""
    for rank in pids:  # what it has written before is no answer
        flight_recorder.path_of(folder, rank).unlink(missing_ok=True)
    process_tree.send_signal(pids.values(), signal.SIGUSR1)
    deadline = time.monotonic() + ANSWER_SECONDS
    expected = [flight_recorder.path_of(folder, rank) for rank in {*pids, *everybody}]
    while not all(path.exists() for path in expected) and time.monotonic() < deadline:
        time.sleep(0.05)  # the stack is written before the collectives


def _read_answers(folder: Path, alive: set[int]) -> dict[int, standstill.Rank]:
    """Read what each rank has answered. alive: the ranks that have a process here."""
    dumps, endings = flight_recorder.read(folder), _find_endings(folder, alive)
    stacks = {int(path.stem) for path in (folder / "ranks").glob("*.stack")}
    ranks = {}
    for number in sorted({*range(_count_ranks(folder)), *stacks, *dumps, *endings}):
        stack = standstill.read_stack(folder, number)
        ranks[number] = standstill.read_rank(dumps.get(number), stack, endings.get(number))
    return ranks


def _count_ranks(folder: Path) -> int:
    return read_json(folder / "config.json").get("processes", 0)


def _find_endings(folder: Path, alive: set[int]) -> dict[int, str]:
    """Say how ranks have ended: as the launcher wrote it, or as seen if all are on this machine."""
    error = summary.read(folder).get("error") or {}
    if error.get("kind") == "killed" and error["rank"] is not None:
        return {error["rank"]: error["message"].partition(",")[0]}
    config = read_json(folder / "config.json")
    here = config.get("hosts", 1) == 1 or config.get("link")
    missing = set(range(_count_ranks(folder))) - alive
    return dict.fromkeys(missing, "is gone") if alive and here else {}


class Watchdog:
    """Watches one run, whose processes are `pids`, in order of rank where these are ranks.

    It hangs if for `hang_seconds` no rank has finished a step, printed or computed, or if for
    `busy_seconds` none has finished a step or printed.
    """

    def __init__(self, request: RunRequest, pids: list[int]):
        self.request, self.pids = request, pids
        self.folder = Path(request.run)
        now = time.monotonic()
        self._looked = self._stepped = self._printed = self._computed = now
        self._beats: dict[int, tuple] = {}
        self._output_bytes = 0
        self._cpu_seconds: dict[int, float] = {}

    async def find_failure(self, ended: dict[int, int], below: set[int]) -> dict | None:
        """Return the failure of ranks that hang, None if they do not.

        ended: exit codes of the ranks that have ended. below: all processes below the run's.
        """
        self._look(below)
        now, alive, least = time.monotonic(), max(self._stepped, self._printed), 0.0
        if not self._beats and self.request.agents and self.request.ranks:
            least = START_SECONDS
        elif not self._beats and self.request.records:
            least = FIRST_SECONDS
        is_idle = now - max(alive, self._computed) > max(self.request.hang_seconds, least)
        if not is_idle and now - alive <= max(self.request.busy_seconds, least):
            return None
        ranks = {rank: beat[0] for rank, beat in self._beats.items()}
        if not self.request.agents:
            ranks = {rank: pid for rank, pid in enumerate(self.pids) if rank not in ended}
        await asyncio.to_thread(ask, self.folder, ranks)
        return self._describe(sorted(ranks), now - self._stepped)

    def _look(self, below: set[int]) -> None:
        """Note whether steps, output and processor time have grown since the last look."""
        now, found = time.monotonic(), heartbeat.read_all(self.folder)
        if found != self._beats:
            self._beats, self._stepped = found, now
        paths = (self.folder / "ranks").rglob("*")
        texts = [path for path in paths if path.suffix in (".out", ".err", ".log")]
        output_bytes = sum(path.stat().st_size for path in texts)
        if output_bytes != self._output_bytes:
            self._output_bytes, self._printed = output_bytes, now
        pids = {*self.pids, *below, *(beat[0] for beat in found.values())}
        seconds = {pid: process_tree.read_cpu_seconds(pid) for pid in pids}
        used = [spent - self._cpu_seconds.get(pid, 0) for pid, spent in seconds.items()]
        if max(used, default=0) > BUSY_SHARE * (now - self._looked):
            self._computed = now
        self._cpu_seconds, self._looked = seconds, now

    def _describe(self, ranks: list[int], silent: float) -> dict:
        """Describe ranks that finish no step, from the stacks and collectives that they wrote."""
        answers = _read_answers(self.folder, set())
        found = standstill.explain(answers)
        waiting, places = set(), []
        for rank in ranks:
            answer = answers.get(rank, standstill.Rank())
            place = f"rank {rank}, {self._beats[rank][1] if rank in self._beats else 0} steps done"
            frames = COLLECTIVE_FRAMES + (WAITING_FRAMES if answer.open_collective else ())
            if any(frame in line for line in answer.stack.splitlines()[:2] for frame in frames):
                waiting.add(rank)
                place += ", waits for the others"
            places.append(f"{place}:\n{answer.stack or NO_ANSWER}")
        stuck = found.ranks or sorted(set(ranks) - waiting)
        subject = f"rank {stuck[0]} hangs" if len(stuck) == 1 and waiting else "the ranks hang"
        message = f"{subject}: no rank has finished a step for {silent:.0f} s"
        if found.kind != "none":
            message += f". {found.sentence[0].upper()}{found.sentence[1:]}"
            places.insert(0, f"{found.table}\n")
        message += ". If a step may take so long, launch with a larger Options(hang_seconds=)"
        rank = stuck[0] if len(stuck) == 1 else None
        return summary.failure(rank, "hang", message, "\n".join(places))


if __name__ == "__main__":
    print(read(*sys.argv[1:]) if len(sys.argv) == 2 else __doc__)
