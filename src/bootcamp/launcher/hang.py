"""python -m bootcamp.launcher.hang logs/<run>

Why a run hangs: each of its ranks is asked where it stands, and what they answer is laid side by
side. In a notebook `hang.read(run)`. On several machines a process can be asked only on its own, so
start it on all of them, with a folder for records that they share:

    srun --overlap --jobid JOB --ntasks-per-node 1 python -m bootcamp.launcher.hang logs/<run>

After a run has ended, it reads what was answered then: when the launcher found it hanging, or when
an exception ended its ranks. It knows the processes of runs that beat (record.Run, external.Run).
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from bootcamp.files import read_json
from bootcamp.records import flight_recorder, heartbeat, stalled, summary
from bootcamp.records.runs import Run
from bootcamp.records.stalled import Standstill

ANSWER_SECONDS = 3.0  # 2000 collectives take a fifth of a second, on a core that nobody shares


def read(run: Run | Path | str) -> Standstill:
    """Ask the ranks of a run that goes on on this machine, and say why they do not get on.

    run: the record or its folder. Asking stops no rank: what it computes goes on meanwhile. Ranks
    that do get on have collectives open as well, so ask when no step has ended for a while.
    Raises FileNotFoundError where the folder holds no run.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    if not (folder / "ranks").exists():
        raise FileNotFoundError(f"{folder} holds no run: there are no ranks in it.")
    pids = processes(folder)
    if pids:
        ask(folder, pids)
        everyone = range(_started(folder)) or pids
        deadline = time.monotonic() + ANSWER_SECONDS
        while not answered(folder, everyone) and time.monotonic() < deadline:
            time.sleep(0.05)
    return stalled.explain(answers(folder, pids))


def processes(folder: Path) -> dict[int, int]:
    """The process of each rank that is alive on this machine: it holds its own beat file open."""
    found = {}
    for path in (folder / "ranks").glob("*.beat"):
        beat = heartbeat.read(path)
        with contextlib.suppress(psutil.Error, OSError):
            held = psutil.Process(beat[0]).open_files() if beat else []
            if any(Path(file.path) == path.resolve() for file in held):
                found[int(path.stem)] = beat[0]
    return found


def ask(folder: Path, pids: dict[int, int]) -> None:
    """Ask the processes of these ranks where they stand; what they said before is forgotten."""
    flight_recorder.forget(folder, pids)
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)


def answered(folder: Path, ranks) -> bool:
    """Whether all of these ranks have written their collectives. The stack is written before."""
    return all(flight_recorder.path_of(folder, rank).exists() for rank in ranks)


def answers(folder: Path, alive: dict[int, int] | None = None) -> dict[int, stalled.Rank]:
    """Return what each rank has answered. alive: the ranks that have a process here."""
    dumps = flight_recorder.read(folder)
    gone = _gone(folder, alive or {})
    stacks = {int(path.stem) for path in (folder / "ranks").glob("*.stack")}
    ranks = {}
    for number in sorted({*range(_started(folder)), *stacks, *dumps, *gone}):
        stands = stalled.stack_line(flight_recorder.stack(folder, number))
        ranks[number] = stalled.rank_of(number, dumps.get(number), stands, gone.get(number))
    return ranks


def _started(folder: Path) -> int:
    """The number of ranks, 0 where the record does not say."""
    return read_json(folder / "config.json").get("processes", 0)


def _gone(folder: Path, alive: dict[int, int]) -> dict[int, str]:
    """How ranks have ended, as far as it is known: told by the launcher, or seen on this machine.

    Seen only if all hosts are this machine: another's processes can't be looked up here.
    """
    error = summary.read(folder).get("error") or {}
    if error.get("kind") == "killed" and error["rank"] is not None:
        return {error["rank"]: error["message"].partition(",")[0]}
    config = read_json(folder / "config.json")
    here = config.get("hosts", 1) == 1 or config.get("link")
    if not (alive and here):
        return {}
    return dict.fromkeys(set(range(_started(folder))) - set(alive), "is gone")


if __name__ == "__main__":
    print(read(*sys.argv[1:]) if len(sys.argv) == 2 else __doc__)
