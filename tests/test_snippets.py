"""The small scripts of the lessons run as their docstrings say."""

import ast

import pytest
from trained import trained

from bootcamp.launcher import launch
from bootcamp.paths import ROOT, SRC
from bootcamp.scripts import family

SNIPPETS = sorted((SRC / "snippets").glob("*.py"))
HANGS_ON_PURPOSE = {"teardown"}
WITH_HOROVOD = [path for path in SNIPPETS if family.describe(path).launcher == "horovodrun"]
RUN_HERE = [p for p in SNIPPETS if p.stem not in HANGS_ON_PURPOSE and p not in WITH_HOROVOD]


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda p: p.stem)
def test_the_docstring_says_how_to_run_it(path):
    first = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
    assert f"src/snippets/{path.name}" in first
    starts = ("python ", "torchrun --standalone --nproc-per-node 2 ", "horovodrun --gloo -np 2 ")
    assert first.startswith(starts)


@pytest.mark.parametrize("path", WITH_HOROVOD, ids=lambda p: p.stem)
def test_its_lesson_runs_it(path):
    """Horovod starts slowly: what nbval runs in the lesson is not run a second time."""
    lesson = (ROOT / "notebooks" / "sources" / "05_horovod.py").read_text()
    assert lesson.count(f'SNIPPETS / "{path.name}"') + lesson.count(f"SNIPPETS / '{path.name}'")
    assert "horovod.launch" in lesson


@pytest.mark.parametrize("path", RUN_HERE, ids=lambda p: p.stem)
def test_it_runs(path):
    if "if __name__" in path.read_text():  # a program that starts its own processes
        assert launch.run_command(["python", str(path)]).strip()
        return
    trains = family.describe(path).of_course
    flags = {"steps": 2, "global_batch": 16} if trains else {}
    run = trained(path, 2, **flags)
    assert run.status == "ok"
