"""Lesson 07b: the files of a checkpoint, kills while it is saved, and runs that resume."""

import contextlib
import os
import signal
import time
from pathlib import Path

from bootcamp.hosts import drills
from bootcamp.launcher.launch import Options, launch
from bootcamp.records import heartbeat
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import excerpts


def furthest(run: Run, baseline: Run) -> float:
    """Return the largest difference of any step's loss from that of a run that never stopped."""
    return max(abs(row["loss"] - baseline.losses[row["step"]]) for row in run.steps)


def list_files(folder: Path) -> Table:
    """Table the files of one checkpoint and their bytes."""
    columns = {"file": "name", "bytes": lambda file: file.stat().st_size}
    return Table.of(sorted(folder.iterdir()), columns, f"{folder.parent.name}/{folder.name}")


def pieces(folder: Path, key: str) -> list[dict]:
    """List the pieces of one tensor of a checkpoint: file, first row and column, and shape."""
    from torch.distributed import checkpoint as dcp

    about = dcp.FileSystemReader(folder).read_metadata()
    where = {tuple(i.offset): s for i, s in about.storage_data.items() if i.fqn == key}
    cut = [(tuple(c.offsets), tuple(c.sizes)) for c in about.state_dict_metadata[key].chunks]
    return [{"file": where[at].relative_path, "offsets": at, "sizes": sizes} for at, sizes in cut]


def save_for_ever(way: str, kills: int) -> dict:
    """Save in this `way` (in_place, beside) again and again, and kill that process.

    Returns what each kill left (whole, torn, missing), and the seconds of `making` and `saving`.
    """
    program = excerpts.SNIPPETS / "save_for_ever.py"
    return excerpts.parse_printed(launch(program, 1, quiet=True, way=way, kills=kills))[-1]


def launch_and_kill(
    folder: Path, script: str, ranks: int, after_steps: int, after_seconds: float, **flags
) -> Run:
    """Launch, and kill -9 all ranks some seconds after they have done so many steps."""
    how = {"start": "warm", "options": Options(run_dir=folder), **flags}
    with drills.BackgroundRun(script, ranks, hosts=1, **how) as run:
        run.wait_for(lambda: run.count_finished_steps(ranks) >= after_steps)
        time.sleep(after_seconds)
        for process_id, *_ in heartbeat.read_all(folder).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
    return run.record


STATEFUL = excerpts.SNIPPETS / "stateful_checkpoint.py"
FORGET = {  # what is left out -> the line that takes it up
    "the generators": 'torch.set_rng_state(state[f"generator{rank}"])',
    "the loader's position": 'loader.load_state_dict(state["loader"])',
}


def run_legs(legs: list[tuple[int, dict]], place: Path, forget: str = "", **flags) -> list[dict]:
    """Run each leg, (ranks, flags), and return what its rank 0 printed. forget: a key of FORGET."""
    script = STATEFUL
    if forget:
        script = variant(STATEFUL, f"forgets_{len(forget)}", {FORGET[forget]: "pass"})
    how = {"device": "cpu", "quiet": True, "place": place, **flags}
    return [excerpts.parse_printed(launch(script, ranks, **how, **own))[0] for ranks, own in legs]
