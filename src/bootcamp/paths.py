"""Where things lie. Standard library only."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
NOTEBOOKS = ROOT / "notebooks"
LOGS = Path(os.environ.get("BOOTCAMP_LOGS", ROOT / "logs")).resolve()
REFERENCE = ROOT / "logs" / "reference"
WORK = Path(os.environ.get("BOOTCAMP_WORK", NOTEBOOKS / "work")).resolve()  # the readers' scripts


def shown(path: Path | str) -> str:
    """A path as a reader sees it: from the project's folder if it lies in it."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
