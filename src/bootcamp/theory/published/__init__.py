"""Other people's measurements, each with its source, as CSV: `published.table("hardware")`."""

import csv
from pathlib import Path


def table(name: str) -> list[dict[str, str]]:
    """The rows of one of this folder's files, all values as text. Raises FileNotFoundError."""
    with open(Path(__file__).parent / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))
