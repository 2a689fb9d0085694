"""Imports go one way, parts keep within their limits, the public interface loads what is asked for.

The contracts stand in pyproject.toml, under [tool.importlinter].
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

import bootcamp
from bootcamp.paths import PACKAGE, ROOT

PACKAGES = (PACKAGE, PACKAGE.with_name("bootcamp_lessons"))
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


def lint(folder, more) -> str:
    """Say what import-linter says of a copy of the packages with more files in it."""
    pytest.importorskip("importlinter")
    for package in PACKAGES:
        shutil.copytree(
            package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, text in more.items():
        (folder / "bootcamp" / name).write_text(text)
    return run(LINT, "--no-cache", "--no-logo", ROOT / "pyproject.toml", path=folder).stdout


def run(code, *arguments, path=ROOT / "src") -> subprocess.CompletedProcess:
    """Run code in a new process."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=path,
        capture_output=True,
        text=True,
    )


def test_contracts_are_kept(tmp_path):
    said = lint(tmp_path, {})
    assert " 0 broken" in said, said


WRONG = {  # file: its text, and what is said of it
    "records/more.py": ("from bootcamp.train import record", "records.more -> bootcamp.train.rec"),
    "train/more.py": ("import bootcamp.launcher.launch", "train.more -> bootcamp.launcher.launch"),
    "more.py": ("from bootcamp.records import runs", "not listed as layers:\n\n- bootcamp.more"),
    "classroom/more.py": ("from bootcamp_lessons import exercise", "classroom.more -> bootcamp_le"),
    "costs/more.py": ("from bootcamp.costs import other", "No cycles are allowed in bootcamp.cos"),
    "costs/other.py": ("def late():\n    from . import more", ".other -> .more"),
    "experiments/more.py": ("from bootcamp import launch", "experiments.more -> bootcamp (l.1)"),
    "widgets/more.py": ("from ..train import record", "widgets.more -> bootcamp.train.record"),
    "drawing/more.py": ("from ..launcher import launch", "drawing.more -> bootcamp.launcher"),
    "launcher/more.py": ("import torch", "launcher.more -> torch"),
    "serving/more.py": ("def show():\n    import ipywidgets", "serving.more -> ipywidgets (l.2)"),
}


def test_contracts_are_broken_by_wrong_imports(tmp_path):
    """All at once: to read the package takes seconds."""
    said = lint(tmp_path, {file: text for file, (text, _) in WRONG.items()})
    assert " 0 kept" in said
    assert [says for _, says in WRONG.values() if says not in said] == []


def test_subpackages_say_what_to_read_first():
    for page in [*PACKAGE.glob("*/__init__.py"), PACKAGES[1] / "__init__.py"]:
        first = re.search(r"^Read first: (\w+)", page.read_text(), re.MULTILINE)[1]
        assert page.with_name(f"{first}.py").exists(), page


def limits() -> dict[str, int]:
    """The most lines of each part, as src/README.md has them."""
    table = (ROOT / "src/README.md").read_text().partition("| Lines of Python, at most |")[2]
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()[2:]]
    return {name: int(lines.replace(",", "")) for name, lines in rows}


def parts() -> dict[str, int]:
    """The lines of each part: subpackages, the modules beside them, the public interface."""
    lines = {"bootcamp_lessons": 0}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            first, *inside = path.relative_to(package).parts
            part = first if inside else "front door" if first == "__init__.py" else "top"
            part = part if package == PACKAGE else package.name
            lines[part] = lines.get(part, 0) + len(path.read_text().splitlines())
    return lines


def test_parts_keep_within_their_limits_and_these_within_that_of_all():
    most = limits()
    whole = most.pop("all of bootcamp")
    assert {part: n for part, n in parts().items() if n > most.get(part, 0)} == {}
    assert sum(most.values()) - most["bootcamp_lessons"] <= whole, "one rises where another falls"


# the public interface


LOADED = """import sys
before = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
STATEMENTS
own = [name for name in sys.modules if name.startswith(("bootcamp.", "bootcamp_"))]
others = {name.partition(".")[0] for name in sys.modules} - before - {"bootcamp"}
print(*own, *others)"""


def list_loaded(statements: str) -> set[str]:
    """List what statements load: modules of the course, and other packages by their names."""
    done = run(LOADED.replace("STATEMENTS", statements))
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


NOTEBOOKS = ("IPython", "ipykernel", "ipywidgets", "matplotlib", "nbformat", "nvitop", "jupyterlab")
NOTEBOOK_SIDE = (
    *(f"bootcamp.{x}" for x in ("drawing", "widgets", "classroom")),
    "bootcamp_lessons",
)
RANK_SIDE = [f"bootcamp.train.{p.stem}" for p in (PACKAGE / "train").glob("[a-z]*.py")]


@pytest.mark.parametrize(
    ("statement", "loads", "not_loaded"),
    [
        ("import bootcamp", (), ("",)),
        (
            "from bootcamp import runs",
            ("bootcamp.records.runs",),
            ("bootcamp.launcher", "torch", *NOTEBOOKS),
        ),
        (
            "import bootcamp.launcher.launch, bootcamp.records.runs, bootcamp.experiments.equality",
            (),
            ("torch", "numpy", *NOTEBOOKS),
        ),
        pytest.param(
            f"import {', '.join(RANK_SIDE)}",
            ("torch",),
            ("bootcamp.launcher", *NOTEBOOK_SIDE, *NOTEBOOKS),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nothing else", "what a name needs", "no torch to launch", "no notebooks in ranks"],
)
def test_imports_load(statement, loads, not_loaded):
    loaded = list_loaded(statement)
    assert set(loads) <= loaded
    assert [name for name in loaded if name.startswith(not_loaded)] == []


def test_names_of_the_public_interface_load():
    from bootcamp.launcher import launch as module

    assert bootcamp.launch is module.launch
    for name in bootcamp.__all__:
        if bootcamp.FRONT_DOOR[name].startswith(
            ("drawing", "widgets", "classroom", "bootcamp_lessons")
        ):
            pytest.importorskip("ipywidgets")
        assert getattr(bootcamp, name) is not None
        assert name in dir(bootcamp)


def test_unknown_names_say_what_was_probably_meant():
    with pytest.raises(AttributeError, match=r"bootcamp has no 'lunch': did you mean launch\?"):
        _ = bootcamp.lunch
    with pytest.raises(AttributeError, match=r"no 'xyz': it has launch, .+journal"):
        _ = bootcamp.xyz
    with pytest.raises(ImportError):
        exec("from bootcamp import lunch")
