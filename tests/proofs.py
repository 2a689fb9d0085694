"""python tests/proofs.py, or: make proofs

Print what each test proves or rejects, as the tests say it themselves:
`@pytest.mark.proves("fsdp")` names a script or a fault, `solves` an exercise, and
`@pytest.mark.rejects("gradients summed")` a mistake that a proof must not pass.
"""

import importlib
import sys
from collections import defaultdict
from pathlib import Path

import faults

from bootcamp.scripts import strategies
from bootcamp_lessons.exercises import EXERCISES

TO_PROVE = {"proves": (*strategies.SCRIPTS, *faults.FAULTS), "solves": tuple(EXERCISES)}
NOBODY = "NOT PROVED"


def marked(mark: str) -> dict[str, list[str]]:
    """Collect the tests with this mark: {what a mark names: ["test_hang.py::test_rank"]}."""
    found = defaultdict(list)
    for name, function in tests().items():
        for each in getattr(function, "pytestmark", ()):
            for argument in each.args if each.name == mark else ():
                found[argument].append(name)
    return dict(found)


def tests() -> dict[str, object]:
    """Import every test file; its test functions by "file::name"."""
    return {
        f"{path.name}::{name}": thing
        for path in sorted(Path(__file__).parent.glob("test_*.py"))
        for name, thing in vars(importlib.import_module(path.stem)).items()
        if name.startswith("test_") and getattr(thing, "__module__", None) == path.stem
    }


def page() -> str:
    """Write the proofs as text, what nobody proves included."""
    lines = []
    for mark, names in {**TO_PROVE, "rejects": marked("rejects")}.items():
        tests = marked(mark)
        lines += ["", f"what {mark}", *(row(name, tests.get(name, [NOBODY])) for name in names)]
    return "\n".join(lines).lstrip()


def row(name: str, proofs: list[str]) -> str:
    """Write a name and its proofs, one a line."""
    return f"  {name:52} " + ("\n" + " " * 55).join(proofs)


if __name__ == "__main__":
    sys.path[:0] = [
        str(Path(__file__).parents[1] / folder) for folder in ("tools", "tools/recorders", "slides")
    ]
    print(page())
