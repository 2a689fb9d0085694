"""What a reader has done: `progress()` shows it, lesson by lesson.

Predictions and exercises write here as they are scored and checked; one small file beside the
reader's own scripts keeps it (BOOTCAMP_WORK moves both). What there is to do is read from the
notebooks. A journal that can't be written stops nobody.
"""

import ast
import contextlib
import json
import re
from pathlib import Path

from bootcamp.paths import NOTEBOOKS, WORK
from bootcamp.records import summary
from bootcamp.table import Table

CHECKED = re.compile(r'exercise\.check\(\s*"(\w+)"')
FILE = "progress.json"


def note_exercise(name: str, solved: bool) -> int:
    """Write down an attempt; returns how many there have been since it was last solved."""
    kept = _read()
    entry = kept["exercises"].setdefault(name, {"attempts": 0, "solved": False})
    entry["attempts"] = 0 if solved else entry["attempts"] + 1
    entry["solved"] |= solved
    _write(kept)
    return entry["attempts"]


def note_prediction(question: str, right: bool) -> None:
    """Write down a prediction that was scored; the last answer to a question counts."""
    kept = _read()
    kept["predictions"][_without_numbers(question)] = right
    _write(kept)


def progress() -> Table:
    """A row for each lesson: predictions made and right, exercises solved, and what is left."""
    kept, rows = _read(), []
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        questions, exercises = things_to_do(path)
        answers = [_answers(pattern, kept["predictions"]) for pattern in questions]
        made = [given for given in answers if given]
        solved = [name for name in exercises if kept["exercises"].get(name, {}).get("solved")]
        rows.append(
            {
                "lesson": path.stem,
                "predictions made": f"{len(made)} of {len(questions)}",
                "right": sum(all(given) for given in made),
                "exercises solved": f"{len(solved)} of {len(exercises)}",
                "still to solve": ", ".join(name for name in exercises if name not in solved),
            }
        )
    return Table(rows, "What you have done so far")


def _answers(question: re.Pattern, scored: dict[str, bool]) -> list[bool]:
    """Whether they were right: a cell may ask one question about several cases."""
    return [right for text, right in scored.items() if question.fullmatch(text)]


def things_to_do(notebook: Path) -> tuple[list[re.Pattern], list[str]]:
    """The questions that a notebook asks, as patterns without numbers, and its exercises' names."""
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    questions, exercises = [], []
    for text in code:
        exercises += [name for name in CHECKED.findall(text) if name not in exercises]
        with contextlib.suppress(SyntaxError):  # a cell with a magic
            calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            questions += [_pattern(call) for call in calls if _asks(call)]
    return questions, exercises


def _asks(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "predict" and bool(call.args)


def _pattern(call: ast.Call) -> re.Pattern:
    """The question of a predict(...) call; whatever stands there in braces may be anything."""
    question = call.args[0]
    parts = question.values if isinstance(question, ast.JoinedStr) else [question]
    texts = [
        re.escape(_without_numbers(part.value)) if isinstance(part, ast.Constant) else ".*"
        for part in parts
    ]
    return re.compile("".join(texts), re.DOTALL)


def _without_numbers(question: str) -> str:
    """A question as it stays when what was measured before it changes."""
    return re.sub(r"\d+(?:[.,]\d+)*", "", question)


def _read() -> dict:
    empty = {"exercises": {}, "predictions": {}}
    try:
        kept = json.loads((WORK / FILE).read_text())
        return {kind: dict(kept[kind]) for kind in empty}
    except (OSError, ValueError, KeyError, TypeError):
        return empty


def _write(kept: dict) -> None:
    with contextlib.suppress(OSError):
        WORK.mkdir(parents=True, exist_ok=True)
        summary.write_json(WORK / FILE, kept)
