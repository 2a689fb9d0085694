"""Published tables that the planner carries: `tables.table("vtrain_single")`.

Each file names the source of its rows in its last column, or published/README.md does.
Standard library only.
"""

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "published"


@cache
def table(name: str) -> list[dict[str, str]]:
    """The rows of one file, all values as text. Raises FileNotFoundError."""
    with open(FOLDER / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))
