"""How long a lesson takes: when it was begun and when its last cell ran, in the reader's journal.

notebooks/lessons.toml has its author's minutes; a class can correct them. A lesson begins with its
kernel, and every kernel counts by itself, so that a night between two of them does not. Only a
Jupyter server says which notebook a kernel is for: `make course` and tests note nothing.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil

from bootcamp import files
from bootcamp.classroom import journal

KIND = "times"  # in the journal: {lesson: {when a kernel began: when a cell ran in it last}}


def watch() -> None:
    """Note in the kernel of a lesson, from now on, when its cells have run."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    lesson = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
    if shell is None or lesson not in journal.list_lessons():
        return
    began = f"{psutil.Process().create_time():.0f}"

    def note(result) -> None:
        def change(kept: dict) -> None:
            kept.setdefault(KIND, {}).setdefault(lesson, {})[began] = time.time()

        # a journal that can't be written stops nobody
        with contextlib.suppress(OSError, AttributeError):
            files.update_json(journal.WORK / journal.FILE, change)

    shell.events.register("post_run_cell", note)


def minutes() -> dict[str, float]:
    """Return the minutes that the reader has spent on each lesson, all its kernels together."""
    times = files.read_json(journal.WORK / journal.FILE).get(KIND, {})
    return {
        lesson: sum(last - float(began) for began, last in kernels.items()) / 60
        for lesson, kernels in times.items()
    }
