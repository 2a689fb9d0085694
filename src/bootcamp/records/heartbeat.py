"""Signs of life of one rank: a beat after every step, and an answer when somebody asks.

The launcher recognises a hang by beats that stop coming, whatever framework runs the rank, and asks
each rank where it stands by sending SIGUSR1 (flight_recorder.py).
"""

import os
from pathlib import Path

from bootcamp.records import flight_recorder


class Heartbeat:
    """Beats of one rank in `<run_dir>/ranks/<rank>.beat`: one line `<process id> <steps done>`."""

    def __init__(self, run_dir: Path, rank: int):
        ranks = Path(run_dir) / "ranks"
        ranks.mkdir(parents=True, exist_ok=True)
        self.steps_done = 0
        self._beat = os.open(ranks / f"{rank}.beat", os.O_WRONLY | os.O_CREAT, 0o644)
        flight_recorder.answer(run_dir, rank)
        self.beat(0)

    def beat(self, steps_done: int | None = None) -> None:
        """Show that this rank is alive and has done so many steps: by default as many as before.

        Costs a few microseconds.
        """
        self.steps_done = self.steps_done if steps_done is None else steps_done
        os.pwrite(self._beat, f"{os.getpid():>9} {self.steps_done:>9}\n".encode(), 0)


def read(path: Path) -> tuple[int, int, float] | None:
    """(process id, steps done, time of the beat in seconds since 1970), None before the first."""
    try:
        process_id, steps_done = path.read_text().split()
        return int(process_id), int(steps_done), path.stat().st_mtime
    except (OSError, ValueError):
        return None
