"""Imports go one way, the front door loads what is asked for, and the checker can fail."""

import importlib.util
import re
import subprocess
import sys

import pytest

import bootcamp
from bootcamp.paths import ROOT

spec = importlib.util.spec_from_file_location("rooms_tool", ROOT / "tools" / "rooms.py")
rooms = importlib.util.module_from_spec(spec)
sys.modules["rooms_tool"] = rooms  # dataclasses look their module up
spec.loader.exec_module(rooms)


def test_every_rule_holds():
    assert rooms.problems(rooms.House()) == []


def test_every_room_says_what_it_may_import_and_what_to_read_first():
    for name, room in rooms.ROOMS.items():
        if name == rooms.TOP:
            continue
        package = name if name == rooms.LESSONS else f"bootcamp.{name}"
        docstring = importlib.import_module(package).__doc__
        said = re.search(r"^May import: (.+)\.$", docstring, re.M)[1]
        lower = list(rooms.ROOMS)[1 : list(rooms.ROOMS).index(name)]
        all_lower = len(lower) > 1 and list(room.imports) == lower
        expected = ["every room"] if all_lower else ["the top of the package", *room.imports]
        expected += ["any library"] if room.libraries is None else room.libraries
        assert sorted(said.split(", ")) == sorted(expected), name
        first = re.search(r"^Read first: (\w+)", docstring, re.M)[1]
        assert (rooms.SRC / package.replace(".", "/") / f"{first}.py").exists(), name


def test_the_table_has_every_room_with_its_lines():
    house = rooms.House()
    lines = rooms.table(house).splitlines()
    assert [line.split("  ")[0] for line in lines[1:-2]] == list(rooms.ROOMS)
    records = next(line for line in lines if line.startswith("records"))
    assert int(records.split()[1].replace(",", "")) == house.lines("records") > 100
    experiments = next(line for line in lines if line.startswith("experiments"))
    assert experiments.endswith("records, launcher") or "launcher" in experiments.split("  ")[-1]


@pytest.fixture
def built(tmp_path):
    """built({"records/runs.py": "import torch"}) -> the problems of such a package."""

    def build(files):
        for name, text in {"__init__.py": "", **files}.items():
            path = tmp_path / "bootcamp" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if not (path.parent / "__init__.py").exists():
                (path.parent / "__init__.py").write_text("")
        return rooms.problems(rooms.House(tmp_path / "bootcamp"))

    return build


FINE = {
    "paths.py": "import os",
    "records/runs.py": "from bootcamp import paths\nfrom bootcamp.paths import LOGS",
    "train/record.py": "import torch\nfrom bootcamp.records import runs",
    "launcher/launch.py": "from bootcamp.records.runs import Run\nimport psutil",
    "drawing/plots.py": "import matplotlib\nfrom ..records import runs",
    "../bootcamp_lessons/exercise.py": "from bootcamp.drawing import plots\nfrom . import other",
}


def test_a_good_house_has_no_problem(built):
    assert built(FINE) == []


WRONG_ARROWS = {
    "records/a.py": ("from bootcamp.train import record", "records may not import train"),
    "train/a.py": ("import bootcamp.launcher.launch", "train may not import launcher"),
    "launcher/a.py": ("from bootcamp.train import record", "launcher may not import train"),
    "drawing/a.py": ("from ..launcher import launch", "drawing may not import launcher"),
    "costs/a.py": ("def f():\n    from bootcamp.records import runs", "costs may not import"),
    "machine.py": ("from bootcamp.records import runs", "top may not import records"),
    "__init__.py": ("from bootcamp.records import runs", "front door may not import records"),
    "scripts/a.py": ("import importlib\nimportlib.import_module('bootcamp.records.runs')", "scr"),
    "classroom/a.py": ("from bootcamp_lessons import exercise", "classroom may not import boot"),
    "attic/a.py": ("", "attic is no room"),
}


@pytest.mark.parametrize("file", WRONG_ARROWS)
def test_an_import_against_the_order_is_found(built, file):
    text, expected = WRONG_ARROWS[file]
    assert any(problem.startswith(expected) for problem in built({**FINE, file: text}))


def test_an_import_through_the_front_door_is_an_import_of_the_room(built):
    door = {"__init__.py": 'FRONT_DOOR = {"launch": "launcher.launch:launch"}'}
    found = built({**FINE, **door, "train/a.py": "from bootcamp import launch"})
    assert found == ["train may not import launcher: train.a imports launcher.launch"]


def test_a_circle_of_rooms_is_found(built):
    found = built({**FINE, "records/a.py": "from bootcamp.drawing import plots"})
    assert "a circle of rooms: drawing, records" in found


def test_a_circle_of_modules_is_found_in_functions_too(built):
    circle = {
        "train/a.py": "from bootcamp.train import b",
        "train/b.py": "def late():\n    from . import c",
        "train/c.py": "from .a import something",
    }
    assert built({**FINE, **circle}) == ["a circle of modules: train.a, train.b, train.c"]


@pytest.mark.parametrize("room", ["costs", "records", "scripts", "launcher", "experiments"])
@pytest.mark.parametrize("library", ["torch", "IPython", "ipywidgets", "matplotlib"])
def test_a_library_that_a_room_must_do_without_is_found(built, room, library):
    for text in (f"import {library}", f"def f():\n    from {library} import a"):
        found = built({f"{room}/a.py": text})
        assert found == [f"{room}.a may not import {library}"]


def test_ranks_import_no_notebook_library(built):
    assert built({"train/a.py": "import ipywidgets"}) == ["train.a may not import ipywidgets"]


def test_an_exception_is_for_functions_only(built):
    lazily = "def show():\n    import ipywidgets"
    assert built({"launcher/progress.py": lazily}) == []
    found = built({"launcher/progress.py": "import ipywidgets"})
    assert found == ["launcher.progress may not import ipywidgets"]


def lines(count, first="x = 1"):
    return "\n".join([first, *["    x = 1"] * (count - 1)])


def test_a_function_that_is_too_long_is_found(built):
    assert built({"records/a.py": lines(60, "def f():")}) == []
    long = lines(61, "async def f():")
    assert built({"records/a.py": long}) == ["records/a.py: f has 61 lines: at most 60"]


def test_a_room_that_is_too_long_is_found_and_limits_rise_only_where_others_fall():
    house, most = rooms.House(), rooms.limits(rooms.PAGE.read_text())
    assert rooms.over_limits(house, most) == []
    short = most | {"records": 10}
    lines = house.lines("records")
    assert rooms.over_limits(house, short) == [f"records has {lines:,} lines: at most 10"]
    assert "another has to fall" in rooms.over_limits(house, most | {"train": 20_000})[0]


# the front door


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
        for path in sorted((rooms.PACKAGE / "train").glob("*.py"))
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
