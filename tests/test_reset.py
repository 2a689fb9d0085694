"""A lesson put back to its start, and catching up: nothing of the reader's is ever lost."""

import subprocess

import lessons
import nbformat
import pytest
import reset

import notebooks
from bootcamp.classroom import tasks
from bootcamp.paths import ROOT
from bootcamp.scripts import strategies
from bootcamp_lessons import exercise

SCRIPTS = {number: reset.scripts(lesson) for number, lesson in lessons.lessons().items()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A course whose notebooks and readers' scripts lie in a folder of their own."""
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(reset, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(reset, "WORK", tmp_path / "work")
    monkeypatch.setattr(tasks, "WORK", tmp_path / "work")
    return tmp_path


def files(folder):
    """{path within the folder: text} of all files."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def write_readers_notebook(here, lesson="04", text="my own note"):
    """The lesson's notebook with an output and a cell of the reader's."""
    source = lessons.find(lesson).source
    notebook = notebooks.from_source(source)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.5 s")]
    notebook.cells.append(nbformat.v4.new_markdown_cell(text))
    path = here / f"{source.stem}.ipynb"
    nbformat.write(notebook, path)
    return path


def in_git(name):
    """A notebook's bytes as they are committed."""
    show = ["git", "-C", ROOT, "show", f"HEAD:notebooks/{name}.ipynb"]
    done = subprocess.run(show, capture_output=True)
    if done.returncode:
        pytest.skip("this is no clone: there is no commit to compare with")
    return done.stdout


def test_reset_puts_a_lesson_back_and_keeps_what_was_there(here):
    """The first reader's copy must not be replaced by the second's, or by a fresh one."""
    (here / "work" / "from_horovod.py").write_text("another lesson's")
    (here / "05_horovod.ipynb").write_text("another lesson")
    for text in ("first reader", "second reader"):
        path = write_readers_notebook(here, text=text)
        (here / "work" / "data_parallel.py").write_text(text)
        said = "\n".join(reset.reset("04"))
        assert path.read_bytes() == in_git("04_ddp")
    after = files(here)
    for number, text in (("", "first reader"), ("-2", "second reader")):
        assert text in after[f"work/04_ddp.before{number}.ipynb"]
        assert after[f"work/data_parallel.py.before{number}"] == text
    assert "work/data_parallel.py" not in after
    assert after["work/from_horovod.py"] == "another lesson's"
    assert after["05_horovod.ipynb"] == "another lesson"
    assert len(after) == 7
    for name in ("04_ddp.ipynb", "04_ddp.before-2.ipynb", "data_parallel.py.before-2"):
        assert name in said
    assert "left as it is" in reset.reset("04")[0]
    assert files(here) == after


def test_reset_keeps_a_torn_notebook_and_writes_one_that_is_gone(here):
    path = here / "04_ddp.ipynb"
    path.write_text('{"cells": [')
    reset.reset("04")
    assert files(here)["work/04_ddp.before.ipynb"] == '{"cells": ['
    path.unlink()
    reset.reset("04")
    assert path.read_bytes() == in_git("04_ddp")


def test_stored_outputs_come_back_from_git_and_without_it_are_the_readers_own(here, monkeypatch):
    number = next(n for n in lessons.lessons() if b"stdout" in in_git(lessons.find(n).file))
    path = write_readers_notebook(here, number)
    reset.reset(number)
    assert path.read_bytes() == in_git(path.stem)
    run = nbformat.read(path, 4)
    stored = [cell.outputs for cell in run.cells if cell.get("outputs")]
    run.cells.append(nbformat.v4.new_markdown_cell("my own note"))
    nbformat.write(run, path)
    monkeypatch.setenv("PATH", "")  # no git on this machine
    reset.reset(number)
    again = nbformat.read(path, 4)
    assert "my own note" not in path.read_text()
    assert [cell.outputs for cell in again.cells if cell.get("outputs")] == stored
    assert "left as it is" in reset.reset(number)[0]


def test_catching_up_fills_in_solutions_where_nothing_is(here):
    work = here / "work"
    (work / "first_run.py").write_text("mine")
    (work / "to_the_gpu.py").write_text(exercise.find("to_the_gpu").starting_point())
    said = "".join("".join(reset.catch_up("04")).split())  # lines break where the path is long
    assert (work / "first_run.py").read_text() == "mine"
    assert "first_run.pyisyours" in said
    solution = strategies.SCRIPTS["gpu"].path.read_text()
    assert (work / "to_the_gpu.py").read_text() == solution, "a mere start is nobody's work"
    assert (work / "thread_replicas.py").exists(), "what was not begun is filled in as well"
    assert SCRIPTS["02"] == ["to_the_gpu"], "best_batch is a function in a cell"
    of_before = [name for lesson in ("00", "01", "02", "02b", "03") for name in SCRIPTS[lesson]]
    assert {path.stem for path in work.iterdir()} == set(of_before), "not this lesson's own"


def test_catching_up_leaves_every_solution_and_knows_it_again(here):
    """All lessons before the last; what was made on the way to a solution goes again."""
    last = list(lessons.lessons())[-1]
    reset.catch_up(last)
    before = files(here)
    said = "".join("".join(reset.catch_up(last)).split())
    assert "first_run.pyisthesolutionalready" in said
    assert "isyours" not in said
    assert files(here) == before
    for name in (name for lesson, names in SCRIPTS.items() if lesson != last for name in names):
        text = before[f"work/{exercise.find(name).path.name}"]
        assert tasks.PLACE not in text
        if exercise.find(name).path.suffix == ".py":
            compile(text, name, "exec")
    assert not list((here / "work").glob(".*"))
