"""Where ipywidgets is missing, or the page shows no widgets, text stands in for each of them."""

import sys

import nbformat
import pytest
import run_cache
import trained
import warm
from traitlets import TraitError

pytest.importorskip("matplotlib")
from nbclient import NotebookClient

from bootcamp.classroom import errors
from bootcamp.launcher import progress
from bootcamp.paths import NOTEBOOKS
from bootcamp.widgets import controls, diff_viewer
from bootcamp_lessons import simulators

BEFORE = "import sys\nsys.modules['ipywidgets'] = None\nfrom bootcamp import launch"
# the cells of 00 that show a widget where there are some, and those that they need
NEEDED = ("first = launch", "predict(", "guess_", "diff_viewer", "board.show")
CLAIMS = ("trial(", "check.")


@pytest.fixture
def plain_page(monkeypatch, displayed):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    return displayed


def test_the_first_lesson_shows_texts(tmp_path, monkeypatch):
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
    assert "draws again: moved['script'].value = 'cpu'. The controls" in said
    assert "sort by" not in said
    assert "sort: 'newest first', of" in said


def test_a_line_of_code_moves_a_control(plain_page, capsys):
    moved = simulators.collective()
    said = capsys.readouterr().out
    assert "draws again: moved['way'].value = 'broadcast by a ring'. The controls" in said
    assert "step: 2, of 0, 1, 2," in said
    assert "after step 2 of 6" in plain_page.html
    moved["step"].value = 6
    assert "All is done" in plain_page.html
    moved["ranks"].value = 2
    assert "after step 2 of 2" in plain_page.html, "beyond the last step is the last"
    with pytest.raises(TraitError, match=r"99 can't be chosen: 2, of 2, 3, 4"):
        moved["ranks"].value = 99
    with pytest.raises(TraitError, match="chosen: 'all-reduce by a ring', of 'broadcast by"):
        moved["way"].value = "gossip"


def test_every_kind_of_control_has_a_plain_one(plain_page):
    viewer = diff_viewer.show("ddp")
    viewer["against"].value = "gpu"
    assert "added to _train_gpu.py" in plain_page.html
    found = errors.index()
    found["words"].value = "address already in use"
    assert "<table" in plain_page.html
    runs = controls.several("runs", [("first", "a"), ("second", "b")])
    runs.value = ("a", "b")
    runs.options = [("second", "b")]
    assert runs.value == ()
    assert runs.says() == "0 chosen of 1, a tuple of its .choices()"
    size = controls.steps("bucket", 25, [1, 25, 100])
    assert size.says() == "25, of 1, 25, 100"


@pytest.mark.parametrize("setting", ["0", "1"])
def test_a_setting_turns_widgets_off(setting, monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.setenv(progress.VARIABLE, setting)
    assert (progress.widgets() is None) == (setting == "0")
