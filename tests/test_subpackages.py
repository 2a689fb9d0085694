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

NO_BYTECODE = shutil.ignore_patterns("__pycache__")
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


@pytest.fixture
def lint(tmp_path):
    """lint({"records/more.py": "import torch"}) -> what import-linter says of the package then."""
    pytest.importorskip("importlinter")

    def run(more):
        for package in (PACKAGE, PACKAGE.with_name("bootcamp_lessons")):
            shutil.copytree(package, tmp_path / package.name, ignore=NO_BYTECODE)
        for name, text in more.items():
            (tmp_path / "bootcamp" / name).write_text(text)
        return subprocess.run(
            [sys.executable, "-c", LINT, "--no-cache", "--no-logo", ROOT / "pyproject.toml"],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return run


def test_contracts_are_kept(lint):
    done = lint({})
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


WRONG = {  # file: its text, and what is said of it
    "records/more.py": ("from bootcamp.train import record", "records.more -> bootcamp.train.rec"),
    "train/more.py": ("import bootcamp.launcher.launch", "train.more -> bootcamp.launcher.launch"),
    "more.py": ("from bootcamp.records import runs", "not listed as layers:\n\n- bootcamp.more"),
    "classroom/more.py": ("from bootcamp_lessons import exercise", "classroom.more -> bootcamp_le"),
    "costs/more.py": (
        "from bootcamp.costs import other",
        "No cycles are allowed in bootcamp.cos",
    ),
    "costs/other.py": ("def late():\n    from . import more", ".other -> .more"),
    "experiments/more.py": ("from bootcamp import launch", "experiments.more -> bootcamp (l.1)"),
    "widgets/more.py": ("from ..train import record", "widgets.more -> bootcamp.train.record"),
    "drawing/more.py": ("from ..launcher import launch", "drawing.more -> bootcamp.launcher"),
    "launcher/more.py": ("import torch", "launcher.more -> torch"),
    "serving/more.py": ("def show():\n    import ipywidgets", "serving.more -> ipywidgets (l.2)"),
}


def test_contracts_are_broken_by_wrong_imports(lint):
    """All at once: to read the package takes seconds."""
    done = lint({file: text for file, (text, _) in WRONG.items()})
    assert " 0 kept" in done.stdout
    assert [says for _, says in WRONG.values() if says not in done.stdout] == []


def test_subpackages_say_what_to_read_first():
    for page in [
        *PACKAGE.glob("*/__init__.py"),
        PACKAGE.with_name("bootcamp_lessons") / "__init__.py",
    ]:
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
    for package in (PACKAGE, PACKAGE.with_name("bootcamp_lessons")):
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


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LOADED = (
    "import sys\n"
    "own = [name for name in sys.modules if name.startswith(('bootcamp.', 'bootcamp_'))]\n"
    "others = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
    "print(*own, *sorted(others - {'bootcamp', 'bootcamp_lessons', 'sitecustomize'} - started))"
)
STARTED = "import sys\nstarted = {name.partition('.')[0] for name in sys.modules}\n"


def test_importing_bootcamp_loads_nothing_else():
    assert in_a_new_process(f"{STARTED}import bootcamp\n{LOADED}") == []


def test_a_name_loads_what_it_needs():
    loaded = in_a_new_process(f"{STARTED}from bootcamp import runs\n{LOADED}")
    assert "bootcamp.records.runs" in loaded
    assert not any(name.startswith(("bootcamp.launcher", "torch", "IPython")) for name in loaded)


@pytest.mark.slow
def test_ranks_load_nothing_of_notebooks():
    """All that the scripts import, and nothing that a machine without Jupyter lacks."""
    rank_side = "\n".join(
        f"import bootcamp.train.{path.stem}"
        for path in sorted((PACKAGE / "train").glob("*.py"))
        if path.stem != "__init__"
    )
    loaded = in_a_new_process(f"{rank_side}\n{STARTED.splitlines()[0]}\nstarted = set()\n{LOADED}")
    assert "torch" in loaded
    notebook_side = {"IPython", "ipykernel", "ipywidgets", "matplotlib", "nbformat"}
    assert not notebook_side & set(loaded)
    assert not [
        name
        for name in loaded
        if re.match(r"bootcamp(_lessons|\.(launcher|drawing|widgets|classroom))", name)
    ]


def test_launch_is_the_function_that_launches():
    from bootcamp import launch, runs
    from bootcamp.launcher import launch as module

    assert launch is module.launch
    assert callable(runs.load)


@pytest.mark.parametrize("name", bootcamp.__all__)
def test_every_name_of_the_front_door_loads(name):
    if bootcamp.FRONT_DOOR[name].startswith(
        ("drawing", "widgets", "classroom", "bootcamp_lessons")
    ):
        pytest.importorskip("ipywidgets")
    assert getattr(bootcamp, name) is not None
    assert name in dir(bootcamp)


def test_an_unknown_name_says_what_was_probably_meant():
    with pytest.raises(AttributeError, match=r"bootcamp has no 'lunch': did you mean launch\?"):
        _ = bootcamp.lunch
    with pytest.raises(AttributeError, match=r"no 'xyz': it has launch, .+journal"):
        _ = bootcamp.xyz
    with pytest.raises(ImportError):
        exec("from bootcamp import lunch")
