"""The folders of the course, of runs and of readers' scripts.

Several people may share one installed package, so the course's folder is the clone in which a
notebook or a command runs; elsewhere it is the package's own. A reader without the right to write
there gets ~/bootcamp for runs, scripts and copies of notebooks. BOOTCAMP_LOGS and BOOTCAMP_WORK
name other folders for runs and for readers' scripts.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def course_folder(start: Path) -> Path:
    """Find the nearest folder from `start` upwards that is a clone, else the package's own."""
    for folder in (start, *start.parents):
        if (folder / "notebooks").is_dir() and (folder / "src" / "_train_cpu.py").is_file():
            return folder
    return PACKAGE.parents[1]


try:
    ROOT = course_folder(Path.cwd())
except FileNotFoundError:  # the working directory has been deleted
    ROOT = PACKAGE.parents[1]
SRC = ROOT / "src"
NOTEBOOKS = ROOT / "notebooks"
REFERENCE = ROOT / "logs" / "reference"
# what a reader makes, in the same places as in a clone
_WRITABLE = os.access(NOTEBOOKS, os.W_OK, effective_ids=True)  # with the rights a write has
OWN = ROOT if _WRITABLE else Path(os.path.expanduser("~"), "bootcamp")
LOGS = Path(os.environ.get("BOOTCAMP_LOGS", OWN / "logs")).resolve()
WORK = Path(os.environ.get("BOOTCAMP_WORK", OWN / "notebooks" / "work")).resolve()


def shown(path: Path | str) -> str:
    """Return a path as text for a reader: relative to the course's folder if it is inside."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
