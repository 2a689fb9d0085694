"""What is installed, what may be left out, and who is told: pip is played by a function here."""

import importlib.metadata
import os
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import install
import pytest
from processes import run_program

from bootcamp.launcher import arguments

ROOT = Path(__file__).resolve().parents[1]

MAKE = shutil.which("make")
NOBODY = 65534


class Pip:
    """Plays pip. asked: the last words of its calls. fails: what ends with 7, or "interrupted"."""

    def __init__(self, monkeypatch, tmp_path):
        self.asked, self.here = [], {}
        self.fails, self.absent, self.patch = None, (), monkeypatch
        monkeypatch.setattr(install.subprocess, "run", self._run)
        monkeypatch.setattr(install, "versions_here", lambda: self.here)
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        monkeypatch.setattr(sys, "executable", "/zoë m/.venv/bin/python")

    def _run(self, arguments, cwd):
        if self.fails == "interrupted":
            raise KeyboardInterrupt
        assert arguments[arguments.index("--constraint") + 1] == "constraints.txt"
        self.asked.append(arguments[-1])
        if arguments[-1] == self.fails:
            return SimpleNamespace(returncode=7)
        course = ["bootcamp", *install.project()["project"]["dependencies"]]
        named = [*arguments, *(course if "." in arguments else [])]
        names = [install.plain(each) for each in named if each[0].isalpha()]
        pins = {"bootcamp": install.project()["project"]["version"], **install.pins()}
        self.here |= {n: pins[n] for n in names if n in pins and n not in self.absent}
        return SimpleNamespace(returncode=0)

    def call(self, *arguments) -> int:
        """Call tools/install.py: its exit code."""
        self.patch.setattr(sys, "argv", ["install.py", *arguments])
        return install.main()


@pytest.fixture
def pip(monkeypatch, tmp_path):
    return Pip(monkeypatch, tmp_path)


def last(group):
    """The last word of pip's arguments for a group."""
    return install.groups()[group][-1]


READER = ["torch", "setuptools", last("lab")]


def test_reader_gets_what_a_lesson_needs_and_nothing_twice(pip, capsys, tmp_path):
    assert pip.call() == 0
    assert pip.asked == READER
    assert (tmp_path / ".ready").exists()
    assert pip.call() == 0, "as after an edit of another line of pyproject.toml"
    assert len(pip.asked) == 3
    assert pip.call("serving") == 0
    assert pip.asked[3:] == [last("serving")]
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "1 of 1: the group serving ...", "nothing is said of what is not left out"
    del pip.here["numpy"]
    assert pip.call() == 0
    assert pip.asked[4:] == [last("lab")], "with which the core comes"
    pip.here["numpy"] = "1.0"
    assert pip.call() == 0
    assert pip.asked[5:] == READER, "another version than the pin"


def test_all_installs_every_group_but_horovods(pip):
    others = [name for name in install.groups() if name not in install.READER]
    assert pip.call("all") == 0
    assert pip.asked == [*READER, *(last(name) for name in others if name not in install.LATER)]


@pytest.mark.parametrize(
    ("group", "pip_fails"), [("frameworks", True), ("deepspeed", True), ("megatron", False)]
)
def test_last_lines_say_what_is_left_out_and_how_to_try_again(group, pip_fails, pip, capsys):
    """Where a marker leaves a package out, pip ends well and says nothing."""
    pip.fails = last(group) if pip_fails else None
    pip.absent = {install.plain(last(group))}
    assert pip.call("all") == 0
    *_, first, final = capsys.readouterr().out.splitlines()
    assert first.startswith(f"Not installed: the group {group} ({install.groups()[group][0]}")
    assert first.endswith(install.OPTIONAL[group])
    again = shlex.split(final.removeprefix("All else is installed. To try again: "))
    assert again == ["/zoë m/.venv/bin/python", "install.py", "all"]


@pytest.mark.parametrize(
    ("fails", "code", "says"),
    [
        ("torch", 7, "torch was not installed: pip's reason is above"),
        ("interrupted", install.INTERRUPTED, "Interrupted: the same command goes on"),
        (None, 1, "can't be written by this user"),
    ],
)
def test_obstacles_stop_it_in_a_sentence(fails, code, says, pip, capsys, monkeypatch):
    """What can be written is asked with the rights of pip."""
    monkeypatch.setattr(install.site, "ENABLE_USER_SITE", False)
    if fails is None:
        monkeypatch.setattr("install.os.access", lambda *_, effective_ids=False: not effective_ids)
    pip.fails = fails
    assert pip.call() == code
    assert says in capsys.readouterr().out.splitlines()[-1]
    assert pip.asked == (["torch"] if fails == "torch" else [])


def test_torch_can_come_from_another_index(monkeypatch):
    monkeypatch.setenv("TORCH_INDEX", "https://torch.example/cpu")
    steps = install.steps(["serving"])
    assert [s.what for s in steps if "https://torch.example/cpu" in s.arguments] == ["torch"]


def test_lesson_fetches_what_it_uses_in_an_environment_of_make(monkeypatch, tmp_path):
    def not_there(_):
        raise importlib.metadata.PackageNotFoundError

    called = []
    monkeypatch.setattr(arguments.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(arguments.importlib.metadata, "version", not_there)
    monkeypatch.setattr(arguments.subprocess, "run", called.append)
    assert not arguments.available("lightning", fetch=True)
    (tmp_path / ".ready").touch()
    assert not arguments.available("lightning")
    assert called == []
    assert not arguments.available("lightning", fetch=True)
    assert called == [[sys.executable, ROOT / "tools" / "install.py", "frameworks"]]
    assert set(arguments.GROUPS.values()) <= set(install.groups())


@pytest.fixture
def course(tmp_path):
    """A course whose environment is in `env`; returns a function that calls make there."""
    if MAKE is None:
        pytest.skip("there is no make")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    def make(*arguments, **options):
        return run_program(
            [MAKE, f"PYTHON={python}", "VENV=env", "--no-print-directory", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            **options,
        )

    return make


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to try")
def test_environment_of_another_user_is_used_as_it_is(course, tmp_path):
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    done = course("lab", **nobody)
    assert done.returncode == 2
    assert done.stdout == "env can't be written by this user: say make VENV=/path/to/another.\n"
    ready = tmp_path / "env" / ".ready"
    ready.touch()
    os.utime(ready, (0, 0))  # older than pyproject.toml, as where a clone is newer
    done = course("lab", **nobody)
    assert done.stdout.splitlines()[-1] == "tools/lab.py", done.stdout + done.stderr
    assert "Installing" not in done.stdout
    done = course("test", **nobody)
    assert done.stdout.startswith("env has only what a reader needs")


def test_reader_and_contributor_get_what_they_need_and_are_asked_once(course):
    """The Python of this environment prints its arguments."""
    assert course("lab").stdout.splitlines()[-3:] == [
        "tools/install.py",
        "env/bin/python tools/lab.py ",
        "tools/lab.py",
    ]
    assert "install.py" not in course("lab").stdout
    assert course("check").stdout.splitlines() == ["tools/install.py all", "tools/test.py --check"]
    assert course("check").stdout.splitlines() == ["tools/test.py --check"]
    done = course("install", "GROUPS=serving deepspeed")
    assert done.stdout == "tools/install.py serving deepspeed\n"


@pytest.mark.parametrize("venv", ["/a b/.venv", ""])
def test_venv_with_a_blank_is_refused_in_one_sentence(venv, course):
    done = course("lab", f"VENV={venv}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f'VENV is "{venv}", and make can\'t work with' in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("version", ["Python 3.10.13", "Python 2.7.18"])
def test_old_python_is_refused_in_one_sentence(version, course, tmp_path):
    """Python 2 writes its version to stderr."""
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo {version} >&2\nexit 1\n")
    old.chmod(0o755)
    done = course("install", f"PYTHON={old}", "VENV=new")
    needed = "the course needs Python 3.11 or newer, say make PYTHON=python3.12."
    assert done.stdout == f"{version} is too old: {needed}\n"
    assert not (tmp_path / "new").exists()
