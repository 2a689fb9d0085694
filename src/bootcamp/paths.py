"""The folders of the course.

One installed package may serve many people. So the course's folder is the clone that a notebook or
a command runs in: the nearest parent of the working directory that is one. Elsewhere it is the
package's own. A reader who may not write there gets ~/bootcamp for runs, scripts and copies of
notebooks. BOOTCAMP_LOGS and BOOTCAMP_WORK name other folders for runs and for readers' scripts.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def course_folder(start: Path) -> Path:
    """The nearest folder from `start` upwards that is a clone, else the one of this package."""
    for folder in (start, *start.parents):
        if (folder / "notebooks").is_dir() and (folder / "src" / "_train_cpu.py").is_file():
            return folder
    return PACKAGE.parents[1]


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it has been deleted
        return PACKAGE


ROOT = course_folder(_working_directory())
SRC = ROOT / "src"
NOTEBOOKS = ROOT / "notebooks"
REFERENCE = ROOT / "logs" / "reference"
# what a reader makes, in the same places as in a clone
_WRITABLE = os.access(NOTEBOOKS, os.W_OK, effective_ids=True)  # with the rights a write has
OWN = ROOT if _WRITABLE else Path(os.path.expanduser("~"), "bootcamp")
LOGS = Path(os.environ.get("BOOTCAMP_LOGS", OWN / "logs")).resolve()
WORK = Path(os.environ.get("BOOTCAMP_WORK", OWN / "notebooks" / "work")).resolve()


def shown(path: Path | str) -> str:
    """A path as a reader sees it: relative to the course's folder if it is inside."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
