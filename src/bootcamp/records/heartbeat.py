"""Heartbeats: each rank shows after every step that it is alive; when none come, it hangs."""

import os
from pathlib import Path

from bootcamp.records import flight_recorder


class Heartbeat:
    """Writes `<process id> <steps done>` to ranks/<rank>.beat, and answers where it stands."""

    def __init__(self, run_dir: Path, rank: int):
        ranks = Path(run_dir) / "ranks"
        ranks.mkdir(parents=True, exist_ok=True)
        self.steps_done = 0
        self._beat = os.open(ranks / f"{rank}.beat", os.O_WRONLY | os.O_CREAT, 0o644)
        flight_recorder.start_answering(run_dir, rank)
        self.beat(0)

    def beat(self, steps_done: int | None = None) -> None:
        """Show that this rank is alive, and how many steps it has done; None: as many as before."""
        self.steps_done = self.steps_done if steps_done is None else steps_done
        os.pwrite(self._beat, f"{os.getpid():>9} {self.steps_done:>9}\n".encode(), 0)


def read(path: Path) -> tuple[int, int, float] | None:
    """Read (process id, steps done, seconds since 1970) of a beat, None before the first."""
    try:
        process_id, steps_done = path.read_text().split()
        return int(process_id), int(steps_done), path.stat().st_mtime
    except (OSError, ValueError):
        return None


def read_all(run_dir: Path) -> dict[int, tuple[int, int, float]]:
    """Read the beat of each rank that has given one."""
    paths = (run_dir / "ranks").glob("*.beat")
    return {int(path.stem): beat for path in paths if (beat := read(path))}
