"""Other people's measurements, each with its source, as CSV: `published.table("gpus")`."""

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of this folder's files, all values as text, not to be changed.

    Raises FileNotFoundError.
    """
    with open(FOLDER / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))
