"""Keep what a reader has done; `progress()` shows it, lesson by lesson.

One small file beside the reader's own scripts keeps it (BOOTCAMP_WORK moves both). What there is to
do is named in the notebooks. A journal that can't be written stops nobody.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from bootcamp import machine
from bootcamp.files import read_json, update_json
from bootcamp.paths import NOTEBOOKS, WORK
from bootcamp.table import Table

ASKED = re.compile(r'\bpredict\(\s*"(\w+)",')
CHECKED = re.compile(r'\bexercise\.check\(\s*"(\w+)"')
FILE = "progress.json"
SCORED = {"name", "machine", "right", "question", "unit", "answer", "measured", "how"}


def note_exercise(name: str, solved: bool) -> int:
    """Write down an attempt; returns how many there have been since it was last solved."""
    entry = {"attempts": int(not solved), "solved": solved}

    def change(kept: dict) -> None:
        if before := kept["exercises"].get(name):
            entry["attempts"] = 0 if solved else before["attempts"] + 1
            entry["solved"] = solved or before["solved"]
        kept["exercises"][name] = entry

    _update(change)
    return entry["attempts"]


def note_prediction(name: str, right: bool, **about) -> None:
    """Write down a prediction that was scored; for progress() the last answer counts.

    about: the question, its unit, what was answered and what was measured. Of these the first on
    each machine is kept for prediction_scores.py: whoever answers again has seen the measurement.
    """
    here = f"{machine.cpu_name()}, {machine.memory_bytes() / 1e9:.0f} GB"
    scored = {"name": name, "machine": ", ".join([here, *machine.gpu_names()]), "right": right}

    def change(kept: dict) -> None:
        kept["predictions"][name] = right
        known = {(old["name"], old["machine"]) for old in kept["scored"]}
        if about and (name, scored["machine"]) not in known:
            kept["scored"].append(scored | about | {"when_unix_seconds": time.time()})

    _update(change)


def scored_predictions() -> list[dict]:
    """Each machine's first answer to each question, with what was measured, in their order."""
    return _complete(read_json(WORK / FILE))["scored"]


def progress() -> Table:
    """A row for each lesson: predictions made and right, exercises solved, and what is left."""
    kept, rows = _complete(read_json(WORK / FILE)), []
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        questions, exercises = things_to_do(path)
        if not questions and not exercises:  # the appendix
            continue
        made = [kept["predictions"][name] for name in questions if name in kept["predictions"]]
        open_ones = [x for x in exercises if not kept["exercises"].get(x, {}).get("solved")]
        rows.append(
            {
                "lesson": path.stem,
                "predictions made": f"{len(made)} of {len(questions)}",
                "right": sum(made),
                "exercises solved": f"{len(exercises) - len(open_ones)} of {len(exercises)}",
                "still to solve": ", ".join(open_ones),
            }
        )
    return Table(rows, "What you have done so far")


def things_to_do(notebook: Path) -> tuple[list[str], list[str]]:
    """The names of the predictions that a notebook asks for, and of its exercises."""
    cells = json.loads(notebook.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return list(dict.fromkeys(ASKED.findall(code))), list(dict.fromkeys(CHECKED.findall(code)))


def _complete(kept: dict) -> dict:
    """A journal with a place for each kind of entry, whatever the file had."""
    for kind in ("exercises", "predictions"):
        if not isinstance(kept.get(kind), dict):
            kept[kind] = {}
    scored = kept.get("scored") if isinstance(kept.get("scored"), list) else []
    kept["scored"] = [one for one in scored if isinstance(one, dict) and one.keys() >= SCORED]
    return kept


def _update(change: Callable[[dict], None]) -> None:
    with contextlib.suppress(OSError):
        update_json(WORK / FILE, lambda kept: change(_complete(kept)))
