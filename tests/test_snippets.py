"""The small scripts of the lessons run as their docstrings say."""

import ast

import pytest
from trained import trained

from bootcamp.paths import ROOT, SRC
from bootcamp.scripts import strategies

SNIPPETS = sorted((SRC / "snippets").glob("*.py"))
# the others run in lessons' cells, in the labs behind them, or as the solution of an exercise
RUN_HERE = ("ddp_device_ids.py", "ddp_stopped.py", "meet.py")


def test_snippets_say_how_to_run_them():
    starts = ("python ", "torchrun --standalone --nproc-per-node 2 ", "horovodrun --gloo -np 2 ")
    for path in SNIPPETS:
        first = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
        assert f"src/snippets/{path.name}" in first
        assert first.startswith(starts), path.name


def test_snippets_are_run_by_a_lesson_or_here():
    """nbval runs the lessons' cells, and a launch that fails there raises."""
    folders = [ROOT / "notebooks" / "sources", SRC / "bootcamp", SRC / "bootcamp_lessons"]
    code = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    unused = {path.name for path in SNIPPETS if path.name not in code}
    assert unused <= set(RUN_HERE) <= {path.name for path in SNIPPETS}


@pytest.mark.parametrize("name", RUN_HERE)
def test_snippets_that_no_lesson_launches_run(name):
    path = SRC / "snippets" / name
    trains = strategies.describe(path).takes_course_flags
    flags = {"steps": 2, "global_batch": 16} if trains else {}
    assert trained(path, 2, **flags).status == "ok"
