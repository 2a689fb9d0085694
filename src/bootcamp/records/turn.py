"""Turns: a run with a file `turn` in its folder waits before the step that the file names.

So two warm runs can share cores, some steps of one and then some of the other.
"""

import time
from collections.abc import Callable
from pathlib import Path

FILE = "turn"
POLL_SECONDS = 0.0005


def allow(folder: Path, until: int) -> None:
    """Let the run in this folder do its steps before step `until`."""
    beside = folder / f".{FILE}"
    beside.write_text(str(until))
    beside.replace(folder / FILE)  # at once: a rank never reads half of it


def wait(folder: Path, step: int, before: Callable[[], None]) -> None:
    """Wait until this step is allowed; where it is not yet, call `before` first."""
    path = folder / FILE
    if step >= int(path.read_text()):
        before()
    while step >= int(path.read_text()):
        time.sleep(POLL_SECONDS)
