"""A fresh clone shows no solution and no measured result: what git tracks, and the notebooks."""

import json
import re
import subprocess

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
    measured = [
        cell["id"]
        for cell, source in zip(cells, sources, strict=True)
        if cell["outputs"]
        and (COMPARED not in cell["metadata"].get("tags", []) or ".score(" in source)
    ]
    return solved + measured


def test_notebooks_show_no_solution_and_no_measured_result():
    shown = {path.stem: reveals(code_cells(path)) for path in NOTEBOOKS.glob("*.ipynb")}
    assert {name: found for name, found in shown.items() if found} == {}
    assert len(shown) > 20


def test_solution_and_measured_result_in_a_notebook_are_found():
    task = next(each for each in EXERCISES.values() if isinstance(each, FunctionTask))
    solved = {"source": [str(task.solution_text())], "outputs": [], "metadata": {}, "id": "a"}
    measured = {"source": ["run"], "outputs": [{"text": "12 ms"}], "metadata": {}, "id": "b"}
    scored = measured | {"source": ["x.score(8)"], "metadata": {"tags": [COMPARED]}, "id": "c"}
    assert reveals([solved, measured, scored]) == [task.name, "b", "c"]


def test_git_tracks_no_work_and_no_run_of_a_reader():
    listed = subprocess.run(
        ["git", "ls-files", "notebooks/work", "logs"], cwd=ROOT, capture_output=True, text=True
    )
    kept = ("logs/README.md", "logs/reference/")
    assert [name for name in listed.stdout.split() if not name.startswith(kept)] == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/notebooks/work/", "/logs/*"} <= set(ignored)
