"""A lesson put back to its start, and catching up: nothing of the reader's is ever lost."""

import sys
from pathlib import Path

import nbformat
import pytest

from bootcamp.classroom import exercise
from bootcamp.paths import ROOT
from bootcamp.scripts import family

sys.path.insert(0, str(ROOT / "tools"))
import reset  # noqa: E402

import notebooks  # noqa: E402


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A course whose notebooks and readers' scripts lie in a folder of their own."""
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(reset, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(reset, "WORK", tmp_path / "work")
    monkeypatch.setattr(exercise, "WORK", tmp_path / "work")
    return tmp_path


def files(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def a_readers_notebook(here, lesson="04", text="my own note"):
    """The lesson's notebook with an output and a cell of the reader's."""
    source = reset.find(lesson)
    notebook = notebooks.from_source(source)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.5 s")]
    notebook.cells.append(nbformat.v4.new_markdown_cell(text))
    path = here / f"{source.stem}.ipynb"
    nbformat.write(notebook, path)
    return path


def test_a_lesson_is_put_back(here):
    path = a_readers_notebook(here)
    (here / "work" / "data_parallel.py").write_text("mine")
    (here / "work" / "with_horovod.py").write_text("another lesson's")
    (here / "05_horovod.ipynb").write_text("another lesson")
    said = "\n".join(reset.reset("04"))
    made = nbformat.read(path, 4)
    assert notebooks.same_cells(made, reset.find("04"))
    assert not any(cell.get("outputs") for cell in made.cells)
    after = files(here)
    assert "my own note" in after["work/04_ddp.before.ipynb"]
    assert after["work/data_parallel.py.before"] == "mine"
    assert "work/data_parallel.py" not in after
    assert after["work/with_horovod.py"] == "another lesson's"
    assert after["05_horovod.ipynb"] == "another lesson"
    assert len(after) == 5
    for name in ("04_ddp.ipynb", "04_ddp.before.ipynb", "data_parallel.py.before"):
        assert name in said


def test_twice_loses_nothing(here):
    """The first reader's copy must not be replaced by the second's, or by a fresh one."""
    for text in ("first reader", "second reader"):
        a_readers_notebook(here, text=text)
        (here / "work" / "data_parallel.py").write_text(text)
        reset.reset("04")
    before = files(here)
    assert "first reader" in before["work/04_ddp.before.ipynb"]
    assert "second reader" in before["work/04_ddp.before-2.ipynb"]
    assert before["work/data_parallel.py.before"] == "first reader"
    assert before["work/data_parallel.py.before-2"] == "second reader"
    assert "left as it is" in reset.reset("04")[0]
    assert files(here) == before


def test_a_notebook_as_it_came_is_left_and_a_torn_one_is_kept(here):
    path = here / "04_ddp.ipynb"
    path.write_text((ROOT / "notebooks" / "04_ddp.ipynb").read_text())
    nbformat.write(notebooks.from_source(reset.find("04")), path)
    before = files(here)
    assert "left as it is" in reset.reset("04")[0]
    assert files(here) == before
    path.write_text('{"cells": [')
    reset.reset("04")
    assert files(here)["work/04_ddp.before.ipynb"] == '{"cells": ['
    path.unlink()
    reset.reset("04")
    assert notebooks.same_cells(nbformat.read(path, 4), reset.find("04"))


@pytest.mark.parametrize("lesson", ["4", "99", "", None, "04_ddp"])
def test_an_unknown_lesson_is_refused_with_the_list(here, lesson, capsys, monkeypatch):
    for how in (["reset.py"], ["reset.py", "--catch-up"]):
        monkeypatch.setattr(sys, "argv", [*how, *([lesson] if lesson is not None else [])])
        assert reset.main() == 2
        said = capsys.readouterr().out
        assert "00, 01, 02" in said
        assert "04b" in said
    assert files(here) == {}


def test_exercises_are_those_that_a_lesson_starts():
    by_lesson = {name: reset.exercises(source) for name, source in reset.lessons().items()}
    assert by_lesson["02"] == ["to_the_gpu", "accumulate"]
    assert by_lesson["04"] == ["data_parallel"]
    for lesson, names in by_lesson.items():
        for name in names:
            assert hasattr(exercise.find(name), "starting_point"), (lesson, name)


def test_only_a_call_counts(tmp_path):
    source = tmp_path / "99_x.py"
    source.write_text(
        '# exercise.start("in_text")\nprint(exercise.start("called"))\nx.start("y")\n'
    )
    assert reset.exercises(source) == ["called"]


def test_catching_up_fills_in_solutions_where_nothing_is(here):
    work = here / "work"
    (work / "first_run.py").write_text("mine")
    (work / "training_loop.py").write_text(exercise.find("training_loop").starting_point())
    said = "\n".join(reset.catch_up("04"))
    assert (work / "first_run.py").read_text() == "mine"
    solution = family.SCRIPTS["cpu"].path.read_text()
    assert (work / "training_loop.py").read_text() == solution, "a mere start is nobody's work"
    assert (work / "to_the_gpu.py").read_text() == family.SCRIPTS["gpu"].path.read_text()
    assert not (work / "data_parallel.py").exists(), "this lesson's own exercise is to be done"
    assert "first_run.py is yours" in said
    names = {path.name for path in work.iterdir()}
    of_before = [name for lesson in ("00", "01", "02", "03") for name in EXERCISES[lesson]]
    assert names == {f"{name}.py" for name in of_before}


EXERCISES = {name: reset.exercises(source) for name, source in reset.lessons().items()}


def test_every_solution_is_there_and_is_accepted_as_a_script(here):
    """All lessons before the last; what was made on the way to a solution goes again."""
    last = list(reset.lessons())[-1]
    reset.catch_up(last)
    for lesson, names in EXERCISES.items():
        for name in names if lesson != last else ():
            text = (here / "work" / f"{name}.py").read_text()
            compile(text, name, "exec")
            assert exercise.PLACE not in text
    assert not list((here / "work").glob(".*"))


def test_what_the_lessons_before_were_for_is_their_own_text(here):
    said = " ".join(" ".join(reset.catch_up("05")).split())
    for lesson in ("00", "01", "02", "03", "04", "04b"):
        goals = reset.goals(reset.find(lesson))
        assert goals.startswith("After this lesson you can")
        assert goals in said.replace("micro- batches", "micro-batches")
    assert reset.goals(reset.find("05")) not in said
    for source in reset.lessons().values():
        assert reset.goals(source), f"{source.name} does not say what it is for"
        assert reset.minutes_of(source) > 0


def test_the_shortest_path_is_what_lessons_say_they_are_after():
    assert reset.path_to("00") == []
    assert reset.path_to("04") == ["00"]
    assert reset.path_to("04b") == ["00", "04"]
    assert reset.path_to("08") == ["00", "04", "06", "07"], "07 is after 06: so 08 is too"
    for lesson in reset.lessons():
        path = reset.path_to(lesson)
        assert lesson not in path
        assert path == [name for name in reset.lessons() if name in path]


def test_a_lesson_after_several_others(tmp_path, monkeypatch):
    texts = {"00": "", "01": "", "02": "after lesson 01", "03": "after lessons 01, 02 and 00"}
    for name, text in texts.items():
        (tmp_path / f"{name}_x.py").write_text(
            f"# %% [markdown]\n# # {name} X\n#\n# {text}.\n# %%\n"
        )
    monkeypatch.setattr(notebooks, "sources", lambda: sorted(Path(tmp_path).glob("*.py")))
    assert reset.path_to("03") == ["00", "01", "02"]
    assert reset.path_to("02") == ["00", "01"]
