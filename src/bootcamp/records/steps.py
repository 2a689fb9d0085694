"""What ranks write of a run: rank 0's line for each step, and each rank's record at its end."""

import json
from pathlib import Path


class Record(dict):
    """An object of a JSON file, whose keys are attributes too."""

    def __getattr__(self, name: str):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this record has no {name!r}") from None


class StepRecord(Record):
    """A step of a run, as rank 0 wrote it: of all ranks together."""

    step: int
    attempt: int
    loss: float | None
    seconds: float
    samples: int
    tokens: int


class RankRecord(Record):
    """What train/record.py has written of a rank at its end; bytes not counted are None."""

    rank: int
    world_size: int
    script_world_size: int
    data_share: int
    stages: list[str]
    batch_norm_layers: int
    first_step: int
    device: str
    parameter_device: str
    activation_devices: list[str]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None
    compiled_graphs: int
    peak_bytes: int
    sent_bytes_per_step: float | None
    sent_to_other_hosts_bytes_per_step: float | None
    host_sent_bytes_per_step: float | None
    communication_seconds: float | None
    fingerprint_initial: list[float] | None
    fingerprint_final: list[float] | None
    sample_ids: list[list[int]]
    sample_checksums: list[list[int]]
    learning_rates: list[float]
    expert_counts: list[list[list[int]]]


class Steps:
    """The steps of a run that may still be going on: each call of `new` reads what was added.

    rows: a record of each step, in order; of a step that a restarted run repeats, the last one. A
    line that is not finished, or that a full disk has torn, is left out.
    """

    def __init__(self, run_dir: Path | str):
        self.path = Path(run_dir) / "steps.jsonl"
        self._rows, self._position = {}, 0

    @property
    def rows(self) -> list[StepRecord]:
        return [self._rows[step] for step in sorted(self._rows)]

    def new(self) -> list[StepRecord]:
        """The rows since the last call, in the order in which they were written."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._position:  # another run's file in this place
                    self._rows, self._position = {}, 0
                file.seek(self._position)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._position += len(complete) + len(newline)
        rows = [row for line in complete.splitlines() if (row := _row(line)) is not None]
        self._rows |= {row["step"]: row for row in rows}
        return rows


def _row(line: bytes) -> StepRecord | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_step = isinstance(row, dict) and isinstance(row.get("step"), int)
    return StepRecord(row) if is_step else None


def read_steps(run_dir: Path | str) -> list[StepRecord]:
    """The rows of a run's steps.jsonl in order of step; empty without the file."""
    steps = Steps(run_dir)
    steps.new()
    return steps.rows
