"""Every notebook's parts, and what notebooks use: tables, numbers, variants of scripts."""

import ast
import json
import re
from pathlib import Path

import lessons
import nbformat
import pytest

import notebooks
from bootcamp.classroom import journal
from bootcamp.paths import NOTEBOOKS
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import exercises

EVERYWHERE = ["The question", "The idea", "Predict", "Exercise", "When to use it and when not"]
OF_STRATEGIES = ["What changes", "Run it", "Read the measurement", "Prove it", "Break it"]
SOLUTION = re.compile(r'exercise\.solution\("(\w+)(\.{3})?"\)')


def read_cells(path: Path, kind: str) -> list[str]:
    """Read a notebook's cells of this kind."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


APPENDIX = [each.notebook for each in lessons.notebooks().values() if each.appendix]
LESSONS = [path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) if path not in APPENDIX]
TEXTS = {path: "\n".join(read_cells(path, "markdown")) for path in LESSONS}
EXERCISES = {path: journal.list_things_to_do(path)[1] for path in LESSONS}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_has_its_parts(path):
    """Three predictions and two exercises at least, and the headings in their order."""
    questions, checked = journal.list_things_to_do(path)
    assert len(questions) >= 3
    assert len(checked) >= 2
    headings = re.findall(r"^## (.+)$", TEXTS[path], re.MULTILINE)
    headings = ["Exercise" if each == "Exercises" else each for each in headings]
    assert [each for each in headings if each in EVERYWHERE] == EVERYWHERE
    assert path.stem >= "12" or set(OF_STRATEGIES) <= set(headings)
    assert headings[-1] == "Sources"


STRATEGIES = ["cpu", "dp", "ddp", "horovod", "mp", "pp", "tp", "fsdp", "hsdp", "ep", "3d"]


@pytest.mark.parametrize("script", STRATEGIES)
def test_lesson_on_a_strategy_plots_throughput(script):
    (path,) = (each.notebook for each in lessons.lessons().values() if script in each.scripts)
    drawn = "diagrams.step_seconds(" if script == "hsdp" else "plots.throughput("
    assert f"plots.show({drawn}" in "\n".join(read_cells(path, "code"))


def test_appendix_asks_for_nothing_and_comes_last():
    assert sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))[-1:] == APPENDIX
    assert journal.list_things_to_do(APPENDIX[0]) == ([], [])
    assert APPENDIX[0].stem not in journal.progress().column("lesson")


def test_exercises_are_in_a_lesson_that_says_how_to_see_their_solution():
    """By name, or by the part of the name that all cases of a lesson share, and three dots."""
    assert {name for named in EXERCISES.values() for name in named} == set(exercises.EXERCISES)
    for path, named in EXERCISES.items():
        shown = SOLUTION.findall(TEXTS[path])
        names = {name for name, dots in shown if not dots}
        begins = tuple(name for name, dots in shown if dots)
        assert {name for name in named if not name.startswith(begins)} <= names, path.stem


def claims_not_shown(code: str) -> list[str]:
    """The names of claims whose verdict a cell throws away: Jupyter shows its last line alone."""
    cell = ast.parse(re.sub("^[%!].*", "", code, flags=re.MULTILINE))  # magics are no Python
    calls = [
        line.value
        for line in ast.walk(cell)
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call) and line != cell.body[-1]
    ]
    return [ast.unparse(c.args[0]) for c in calls if ast.unparse(c.func).startswith("claim.")]


def test_claims_are_shown():
    cells = [cell for path in LESSONS for cell in read_cells(path, "code")]
    assert [hidden for cell in cells for hidden in claims_not_shown(cell)] == []
    hidden = "claim.equal('a', 1, 1)\nif True:\n    claim.equal('b', 1, 1)"
    assert claims_not_shown(hidden) == ["'a'", "'b'"], "the search finds one"
    assert claims_not_shown(f"display({hidden.splitlines()[0]})\nclaim.equal('c', 1, 1)") == []


def test_notebooks_keep_outputs_under_new_words_and_lose_them_under_new_code(tmp_path):
    source, stored = tmp_path / "99_x.py", tmp_path / "99_x.ipynb"
    source.write_text('# %% [markdown]\n# Old.\n\n# %% tags=["nbval-check-output"]\nprint(1)\n')
    notebook = notebooks.from_source(source)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="1\n")]
    nbformat.write(notebook, stored)
    source.write_text(source.read_text().replace("Old", "New"))
    fresh = notebooks.from_source(source)
    notebooks.take_over_outputs(fresh, stored)
    assert fresh.cells[0].source == "New."
    assert fresh.cells[1].outputs[0].text == "1\n"
    source.write_text(source.read_text().replace("print(1)", "print(2)"))
    with pytest.raises(ValueError, match="has changed, run it"):
        notebooks.take_over_outputs(notebooks.from_source(source), stored)


def test_variants_of_a_line_that_is_gone_are_an_error():
    with pytest.raises(ValueError, match="'model = Nothing' 0 times, not once"):
        variant("ddp", "gone", {"model = Nothing": ""})


def test_tables_read_in_text_and_html():
    table = Table([{"run": "a<b", "s": 1.5}, {"run": "c", "s": None}], "caption")
    assert str(table).splitlines()[0] == "caption"
    assert "a&lt;b" in table._repr_html_()
    assert table.column("run") == ["a<b", "c"]
    assert str(Table([], "nothing")).startswith("nothing")
