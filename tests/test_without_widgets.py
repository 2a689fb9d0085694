"""Where ipywidgets is missing, or the page shows no widgets, text stands in for each of them."""

import sys

import nbformat
import pytest
import run_cache
import trained
import warm

pytest.importorskip("matplotlib")
from nbclient import NotebookClient

from bootcamp.classroom import errors
from bootcamp.launcher import progress
from bootcamp.paths import NOTEBOOKS
from bootcamp.widgets import controls, diff_viewer

BEFORE = "import sys\nsys.modules['ipywidgets'] = None\nfrom bootcamp import launch"
# the cells of 00 that show a widget where there are some, and those that they need
NEEDED = ("first = launch", "predict(", "guess_", "diff_viewer", "dashboard.show")
CLAIMS = ("trial(", "check.")


@pytest.fixture
def plain_page(monkeypatch, displayed):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    return displayed


def test_first_lesson_shows_texts(tmp_path, monkeypatch):
    """Its cells with widgets, in a kernel that has no ipywidgets."""
    notebook = nbformat.read(NOTEBOOKS / "00_start_here.ipynb", 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells = [c for c in cells if any(word in c.source for word in NEEDED)]
    cells = [c for c in cells if not any(word in c.source for word in CLAIMS)]
    notebook.cells = [nbformat.v4.new_code_cell(BEFORE), *cells]
    monkeypatch.setenv(run_cache.VARIABLE, trained.CACHE)
    with warm.kernels(tmp_path):
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": NOTEBOOKS}})
        client.execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert progress.VIEW not in kinds
    said = "".join(output.get("text", "") for output in outputs)
    assert "torchrun --standalone --nproc-per-node 2 src/_train_ddp.py" in said
    assert "8 steps, final loss" in said
    assert said.count("Your prediction: none yet. Give it as answer=.") == 3
    assert "so this is one choice: script 'ddp', against 'its parent'." in said
    assert "sort 'newest first'" in said


def test_controls_show_what_they_are_called_with(plain_page, capsys):
    assert diff_viewer.show("ddp", "gpu") == {}
    assert "added to _train_gpu.py" in plain_page.html
    assert "this is one choice: script 'ddp', against 'gpu'." in capsys.readouterr().out
    errors.index("address already in use")
    assert "<table" in plain_page.html
    options = [("first", "a"), ("second", "b")]
    runs = controls.control("SelectMultiple", "runs", (), options=options)
    size = controls.steps("bucket", 25, [1, 25, 100])
    controls.follow(lambda **chosen: f"{chosen}", runs=runs, size=size)
    assert plain_page.html == "{'runs': (), 'size': 25}"
