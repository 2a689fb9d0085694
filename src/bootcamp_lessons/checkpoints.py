"""Lesson 07b: what a checkpoint's folder holds, how far a resumed run is off, and kills."""

import contextlib
import os
import signal
import threading
from pathlib import Path

from bootcamp.launcher.launch import LaunchError, Options, launch
from bootcamp.records import heartbeat
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import reading


def furthest(run: Run, never_stopped: Run) -> float:
    """The largest distance of any step's loss from the same step of a run that never stopped."""
    return max(abs(row["loss"] - never_stopped.losses[row["step"]]) for row in run.steps)


def listing(folder: Path) -> Table:
    """Table the files of one checkpoint and their bytes."""
    columns = {"file": "name", "bytes": lambda file: file.stat().st_size}
    return Table.of(sorted(folder.iterdir()), columns, f"{folder.parent.name}/{folder.name}")


def pieces(folder: Path, key: str) -> list[dict]:
    """The pieces of one tensor of a checkpoint: file, first row and column, rows and columns."""
    from torch.distributed import checkpoint as dcp

    about = dcp.FileSystemReader(folder).read_metadata()
    where = {tuple(i.offset): s for i, s in about.storage_data.items() if i.fqn == key}
    cut = [(tuple(c.offsets), tuple(c.sizes)) for c in about.state_dict_metadata[key].chunks]
    return [{"file": where[at].relative_path, "offsets": at, "sizes": sizes} for at, sizes in cut]


def total_seconds(run: Run) -> float:
    """Seconds of all steps but the first, in which everything is set up."""
    return sum(row["seconds"] for row in run.steps[1:])


def save_for_ever(way: str, kills: int) -> dict:
    """Save in this `way` (in_place, beside) again and again, and kill that process.

    found: whole, torn or missing, for each kill. seconds: for `making` a state and `saving` it.
    """
    program = reading.SNIPPETS / "save_for_ever.py"
    return reading.printed(launch(program, 1, quiet=True, way=way, kills=kills))[-1]


def launch_and_kill(
    folder: Path, script: str, ranks: int, after_steps: int, after_seconds: float, **flags
) -> Run:
    """Launch, and kill -9 all ranks some seconds after they have done so many steps."""
    over = threading.Event()
    given = (folder, ranks, after_steps, after_seconds, over)
    thread = threading.Thread(target=_kill, args=given)
    thread.start()
    try:
        return launch(script, ranks, options=Options(run_dir=folder), raises=False, **flags)
    finally:
        over.set()
        thread.join()


def _kill(folder: Path, ranks: int, steps: int, seconds: float, over: threading.Event) -> None:
    beats = [folder / "ranks" / f"{rank}.beat" for rank in range(ranks)]
    while not all((beat := heartbeat.read(path)) and beat[1] >= steps for path in beats):
        if over.wait(0.002):
            return  # the run has ended by itself
    over.wait(seconds)
    for path in beats if not over.is_set() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(heartbeat.read(path)[0], signal.SIGKILL)


def refusal(folder: Path, *given, **flags) -> str:
    """The last line of what a launch that must fail says, without the folder's own path."""
    try:
        launch(*given, **flags)
    except LaunchError as error:
        return str(error).strip().splitlines()[-1].replace(str(folder), "...")
    raise AssertionError("this should not have been resumed")


# A program that saves its state without the course's help: src/snippets/stateful_checkpoint.py

STATEFUL = reading.SNIPPETS / "stateful_checkpoint.py"
FORGET = {  # what is left out -> the line that takes it up
    "the generators": 'torch.set_rng_state(state[f"generator{rank}"])',
    "the loader's position": 'loader.load_state_dict(state["loader"])',
}


def legs(legs: list[tuple[int, dict]], place: Path, forget: str = "", **flags) -> list[dict]:
    """Return what rank 0 of each leg, (ranks, flags), printed; forget: a key of FORGET, if any."""
    script = STATEFUL
    if forget:
        script = variant(STATEFUL, f"forgets_{len(forget)}", {FORGET[forget]: "pass"})
    how = {"device": "cpu", "quiet": True, "place": place, **flags}
    return [reading.printed(launch(script, ranks, **how, **own))[0] for ranks, own in legs]


def losses(legs: list[dict]) -> list[float]:
    """Of all steps of these legs."""
    return [loss for leg in legs for loss in leg["losses"]]
