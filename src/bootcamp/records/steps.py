"""The records that ranks write: rank 0's line for each step, and each rank's at its end."""

import contextlib
import json
from pathlib import Path


class Record(dict):
    """A JSON object whose keys are attributes too; logs/README.md says what each holds."""

    def __getattr__(self, name: str):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this record has no {name!r}") from None


class Steps:
    """The steps of a run that may still be going on.

    rows: one of each step, in order; of a repeated one the last, of an unfinished or torn one none.
    """

    def __init__(self, run_dir: Path | str):
        self.path = Path(run_dir) / "steps.jsonl"
        self._rows, self._position = {}, 0

    @property
    def rows(self) -> list[Record]:
        return [self._rows[step] for step in sorted(self._rows)]

    def read_new(self) -> list[Record]:
        """Read the rows added since the last call, in the order in which they were written."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._position:  # another run's file in this place
                    self._rows, self._position = {}, 0
                file.seek(self._position)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._position += len(complete) + len(newline)
        rows = []
        for line in complete.splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    rows.append(Record(row))
        self._rows |= {row["step"]: row for row in rows}
        return rows


def read_steps(run_dir: Path | str) -> list[Record]:
    """Read a run's steps.jsonl in order of step; empty without the file."""
    steps = Steps(run_dir)
    steps.read_new()
    return steps.rows
