"""tests/README.md says where each thing is proved: nothing is missing, and nothing made up."""

import ast
import re

import faults

from bootcamp.paths import ROOT
from bootcamp.scripts import strategies
from bootcamp_lessons.exercises import EXERCISES

TESTS = ROOT / "tests"
PAGE = (TESTS / "README.md").read_text()
TEST = re.compile(r"\btest_\w+\.py::test_\w+")


def every_test() -> set[str]:
    """Every test function, as file::name."""
    return {
        f"{path.name}::{node.name}"
        for path in TESTS.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_what_the_page_names_exists():
    named = set(TEST.findall(PAGE))
    assert len(named) > 80
    assert named - every_test() == set()
    files = set(re.findall(r"`(test_\w+\.py)`", PAGE)) - {"test_proofs.py"}
    assert [name for name in files if not (TESTS / name).exists()] == []


def test_every_script_rejection_fault_and_exercise_is_named():
    words = {
        "Scripts": strategies.SCRIPTS,
        "Faults": faults.FAULTS,
        "Notebooks and exercises": EXERCISES,
        "What the proof rejects": [name for name in every_test() if "::test_rejects_" in name],
    }
    for heading, expected in words.items():
        named = set(re.findall(r"`([^`]+)`", section(heading)))
        assert set(expected) - named == set(), heading


def test_what_runs_alone_is_in_the_files_that_are_run_so():
    tool = (ROOT / "tools" / "test.py").read_text()
    named = set(ast.literal_eval(re.search(r"^ALONE = (\[.*\])", tool, re.MULTILINE)[1]))
    marked = {
        f"tests/{path.name}"
        for path in TESTS.glob("test_*.py")
        if re.search(r"^(@| {4})pytest\.mark\.alone\b", path.read_text(), re.MULTILINE)
    }
    assert named == marked
