"""A fresh clone shows no solution and no measured result: what git tracks, and the notebooks."""

import json
import re
import subprocess

import pytest

from bootcamp.classroom.tasks import FunctionTask
from bootcamp.paths import NOTEBOOKS, ROOT
from bootcamp_lessons.exercises import EXERCISES

COMPARED = "nbval-check-output"  # its output is the same on every machine: the tests compare it


def code_cells(notebook) -> list[dict]:
    cells = json.loads(notebook.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def body(task: FunctionTask) -> str:
    """The lines of a solution that compute something, without its head and docstring."""
    text = re.sub(r'""".*?"""', "", str(task.solution_text()), flags=re.S)
    return text.partition(":\n")[2].strip()


def reveals(cells: list[dict]) -> list[str]:
    """What cells give away: outputs of this or another machine, and solutions of exercises."""
    sources = ["".join(cell["source"]) for cell in cells]
    tasks = [task for task in EXERCISES.values() if isinstance(task, FunctionTask)]
    solved = [t.name for t in tasks if any("def " in s and body(t) in s for s in sources)]
    stored = [cell for cell in cells if cell["outputs"]]
    unmarked = [c["id"] for c in stored if COMPARED not in c["metadata"].get("tags", [])]
    return solved + unmarked


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_shows_no_solution_and_no_measured_result(notebook):
    assert reveals(code_cells(notebook)) == []


def test_solution_and_measured_result_in_a_notebook_are_found():
    task = next(each for each in EXERCISES.values() if isinstance(each, FunctionTask))
    solved = {"source": [str(task.solution_text())], "outputs": [], "metadata": {}, "id": "a"}
    measured = {"source": ["run"], "outputs": [{"text": "12 ms"}], "metadata": {}, "id": "b"}
    assert reveals([solved, measured]) == [task.name, "b"]


def test_git_tracks_no_work_and_no_run_of_a_reader():
    listed = subprocess.run(
        ["git", "ls-files", "notebooks/work", "logs"], cwd=ROOT, capture_output=True, text=True
    )
    kept = ("logs/README.md", "logs/reference/")
    assert [name for name in listed.stdout.split() if not name.startswith(kept)] == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/notebooks/work/", "/logs/*"} <= set(ignored)
