"""The boards of lesson 14: plans that readers entered, in files that processes share."""

import contextlib
from pathlib import Path

from bootcamp.files import read_json, update_json


def read_entries(path: Path) -> list[dict]:
    """Read all rows of a board, the oldest first."""
    rows = read_json(path).get("entries")
    return rows if isinstance(rows, list) else []


def add_entry(path: Path, row: dict) -> None:
    """Add a row in place of that of the same person, task and plan, if it can be written."""

    def same(old: dict) -> bool:
        return all(old.get(key) == row.get(key) for key in ("who", "task", "plan"))

    def change(kept: dict) -> None:
        kept["entries"] = [*(old for old in kept.get("entries", []) if not same(old)), row]

    with contextlib.suppress(OSError, TypeError):
        update_json(path, change)
