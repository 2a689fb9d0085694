"""Boards of plans that readers entered, each a file that several processes share."""

import contextlib
from pathlib import Path

from bootcamp.files import read_json, update_json


def entries(path: Path) -> list[dict]:
    """All rows of a board, the oldest first."""
    rows = read_json(path).get("entries")
    return rows if isinstance(rows, list) else []


def keep(path: Path, row: dict) -> None:
    """Add a row, in place of an earlier one of the same plan for the same task by the same person.

    A board that can't be written stays as it is.
    """

    def same(old: dict) -> bool:
        return all(old.get(key) == row.get(key) for key in ("who", "task", "plan"))

    def change(kept: dict) -> None:
        kept["entries"] = [*(old for old in kept.get("entries", []) if not same(old)), row]

    with contextlib.suppress(OSError, TypeError):
        update_json(path, change)
