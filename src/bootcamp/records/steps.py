"""The rows of a run's steps.jsonl, at once or as they come. Standard library only."""

import json
from pathlib import Path


class Steps:
    """The steps of a run that may still be going on: each call of `new` reads what was added.

    rows: a dictionary for each step, as rank 0 wrote it; of a step that a restarted run repeats,
    the last one. A line that is not finished, or that a full disk has torn, is left out.
    """

    def __init__(self, run_dir: Path | str):
        self.path = Path(run_dir) / "steps.jsonl"
        self._rows, self._position = {}, 0

    @property
    def rows(self) -> list[dict]:
        """In order of step."""
        return [self._rows[step] for step in sorted(self._rows)]

    def new(self) -> list[dict]:
        """The rows since the last call, in the order in which they were written."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._position:  # another run's file in this place
                    self._rows, self._position = {}, 0
                file.seek(self._position)
                text = file.read()
        except OSError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self._position += len(complete)
        rows = [row for row in map(_row, complete.splitlines()) if row is not None]
        self._rows |= {row["step"]: row for row in rows}
        return rows


def _row(line: bytes) -> dict | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def read_steps(run_dir: Path | str) -> list[dict]:
    """The rows of a run's steps.jsonl in order of step; empty without the file."""
    steps = Steps(run_dir)
    steps.new()
    return steps.rows
