"""Read the collectives of a step, as train/collective_counter.py has counted them."""

from collections import Counter

from bootcamp.files import read_json
from bootcamp.records.runs import Run


def read(run: Run, rank: int = 0) -> list[dict]:
    """Read a rank's rows: phase, kind, nbytes, count."""
    return read_json(run.folder / "ranks" / f"{rank}.collectives.json")["rows"]


def total(run: Run, rank: int = 0) -> dict[tuple[str, int], int]:
    """Add up {(kind, bytes): how often in the step} over all phases."""
    counts: Counter = Counter()
    for row in read(run, rank):
        counts[row["kind"], row["nbytes"]] += row["count"]
    return dict(counts)
