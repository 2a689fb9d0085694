"""The small scripts of the lessons run as their docstrings say."""

import ast
import re
from pathlib import Path

import pytest
from trained import trained

from bootcamp.launcher import launch
from bootcamp.paths import ROOT, SRC
from bootcamp.scripts import strategies

SNIPPETS = sorted((SRC / "snippets").glob("*.py"))
STARTS = r"\b(launch|train|run_command|variant)\("


def code_of_lessons() -> list[str]:
    """The code of each lesson, without its texts."""
    sources = (ROOT / "notebooks" / "sources").glob("*.py")
    texts = (path.read_text().splitlines() for path in sources)
    return ["\n".join(line for line in lines if not line.startswith("#")) for lines in texts]


def starts(code: str, path: Path) -> bool:
    """Whether a lesson's code starts this script, by its name or by a variable with its path."""
    named = re.escape(f'"{path.name}"')
    variables = re.findall(rf"^(\w+) = .*{named}", code, re.M)
    words = "|".join([named, *(rf"\b{each}\b" for each in variables)])
    return bool(re.search(rf"{STARTS}[^\n]*({words})", code))


IN_LESSONS = [path for path in SNIPPETS if any(starts(code, path) for code in code_of_lessons())]
RUN_HERE = [path for path in SNIPPETS if path not in IN_LESSONS]


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda p: p.stem)
def test_the_docstring_says_how_to_run_it(path):
    first = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
    assert f"src/snippets/{path.name}" in first
    begins = ("python ", "torchrun --standalone --nproc-per-node 2 ", "horovodrun --gloo -np 2 ")
    assert first.startswith(begins)


def test_what_a_lesson_starts_is_not_started_a_second_time():
    """nbval runs the lessons' cells, and a launch that fails there raises."""
    assert len(IN_LESSONS) > 20
    assert starts('hangs = SNIPPETS / "teardown.py"\nlaunch(hangs)', SRC / "teardown.py")
    assert not starts('SNIPPETS / "teardown.py"\nlaunch(other)', SRC / "teardown.py")


@pytest.mark.parametrize("path", RUN_HERE, ids=lambda p: p.stem)
def test_it_runs(path):
    if "if __name__" in path.read_text():  # a program that starts its own processes
        assert launch.run_command(["python", str(path)]).strip()
        return
    trains = strategies.describe(path).takes_course_flags
    flags = {"steps": 2, "global_batch": 16} if trains else {}
    run = trained(path, 2, **flags)
    assert run.status == "ok"
