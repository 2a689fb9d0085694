"""The journal of what a reader has done; `progress()` shows it, lesson by lesson.

A file beside the reader's own scripts (BOOTCAMP_WORK moves both); an unwritable one stops nobody.
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


def note_exercise(name: str, solved: bool) -> int:
    """Note an attempt; return how many there have been since it was last solved."""
    entry = {"attempts": int(not solved), "solved": solved}

    def change(kept: dict) -> None:
        before = kept["exercises"].get(name, {"attempts": 0, "solved": False})
        entry["attempts"] += 0 if solved else before["attempts"]
        entry["solved"] |= before["solved"]
        kept["exercises"][name] = entry

    _update(change)
    return entry["attempts"]


def note_prediction(name: str, right: bool, **about) -> None:
    """Note a prediction that was scored; for progress() the last answer counts.

    about: question, unit, answer, measured, how. Of these the first on each machine is kept for
    prediction_scores.py: a later answer is given after the measurement.
    """
    memory = f"{machine.memory_bytes() / 1e9:.0f} GB"
    here = {"name": name, "machine": ", ".join([machine.cpu_name(), memory, *machine.gpu_names()])}

    def change(kept: dict) -> None:
        kept["predictions"][name] = right
        if not any(here.items() <= old.items() for old in kept["scored"]):
            scored = here | {"right": right} | about | {"when_unix_seconds": time.time()}
            kept["scored"].append(scored)

    _update(change)


def list_scored_predictions() -> list[dict]:
    """List each machine's first answer to each question, with what was measured."""
    return _read()["scored"]


def progress() -> Table:
    """Table the lessons: predictions made and right, exercises solved, and what is left."""
    kept, rows = _read(), []
    for lesson, (questions, exercises) in list_lessons().items():
        if not questions and not exercises:  # the appendix
            continue
        made = [kept["predictions"][name] for name in questions if name in kept["predictions"]]
        solved = [x for x in exercises if x in kept["exercises"] and kept["exercises"][x]["solved"]]
        row = {"lesson": lesson, "predictions made": f"{len(made)} of {len(questions)}"}
        row |= {"right": sum(made), "exercises solved": f"{len(solved)} of {len(exercises)}"}
        left = ", ".join(x for x in exercises if x not in solved)
        rows.append(row | {"still to solve": left})
    return Table(rows, "What you have done so far")


def list_lessons() -> dict[str, tuple[list[str], list[str]]]:
    """List the names of each lesson's predictions, and of its exercises."""
    paths = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
    return {path.stem: list_things_to_do(path) for path in paths}


def list_things_to_do(notebook: Path) -> tuple[list[str], list[str]]:
    """List the names of the predictions that a notebook asks for, and of its exercises."""
    cells = json.loads(notebook.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return list(dict.fromkeys(ASKED.findall(code))), list(dict.fromkeys(CHECKED.findall(code)))


def _read() -> dict:
    return _complete(read_json(WORK / FILE))


def _complete(kept: dict) -> dict:
    """Give a journal a place for each kind of entry, whatever the file had."""
    for kind, empty in (("exercises", {}), ("predictions", {}), ("scored", [])):
        if not isinstance(kept.get(kind), type(empty)):
            kept[kind] = empty
    kept["scored"] = [one for one in kept["scored"] if isinstance(one, dict) and "answer" in one]
    return kept


def _update(change: Callable[[dict], None]) -> None:
    with contextlib.suppress(OSError):
        update_json(WORK / FILE, lambda kept: change(_complete(kept)))
