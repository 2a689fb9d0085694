"""Other people's measurements, each with its source, as CSV: `published.table("gpus")`."""

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a file, all values as text, not to be changed, or FileNotFoundError."""
    with open(FOLDER / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))
