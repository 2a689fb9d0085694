"""The commands of a fresh clone: what they refuse, what they leave alone.

Nothing is installed and no server is started here.
"""

import os
import runpy
import shutil
import sys
from pathlib import Path

import jupyter_core.paths
import lab
import pytest
from jupyterlab_server.config import get_page_config
from processes import run_program

from bootcamp.paths import ROOT

MAKE = shutil.which("make")


def test_lab_asks_for_no_news_and_writes_into_no_environment(monkeypatch):
    """The environment of many people is read-only: what JupyterLab reads is in the course."""
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    given = lab.environment()["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert given == [str(lab.CONFIG), "/of/the/user"]
    assert "write_" not in Path(lab.__file__).read_text()
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", given[0])
    page = get_page_config(jupyter_core.paths.jupyter_config_path())
    assert "@jupyterlab/apputils-extension:announcements" in page["disabledExtensions"]


@pytest.mark.parametrize(
    ("lesson", "opens"), [("04", "04_ddp"), ("", "00_start_here"), (None, "00_start_here")]
)
def test_lab_opens_the_lesson_that_is_asked_for(monkeypatch, lesson, opens):
    monkeypatch.delenv("LESSON", raising=False)
    if lesson is not None:
        monkeypatch.setenv("LESSON", lesson)
    assert f"--LabApp.default_url=/lab/tree/notebooks/{opens}.ipynb" in lab.command()


TYPED = "04; touch x; $$(touch x) `touch x` ' touch x '"


@pytest.mark.skipif(MAKE is None, reason="there is no make")
@pytest.mark.parametrize("target", ["reset", "catch-up", "slides", "test", "course", "claims"])
def test_lessons_that_are_typed_are_never_a_command(target, tmp_path):
    """Only the tool gets it, as one argument; here a shell script that prints it."""
    (tmp_path / "python").write_text('#!/bin/sh\nfor last; do :; done\necho "[$last]"\n')
    (tmp_path / "python").chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):  # an environment that is newer than these
        shutil.copy2(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (0, 0))
    made = {"READY": tmp_path / ".ready", "COMPLETE": tmp_path / ".complete"}
    for path in made.values():
        path.touch()
    given = made | {"PY": tmp_path / "python", "LESSON": TYPED, "RECORDS": TYPED}
    done = run_program(
        [MAKE, "-f", ROOT / "Makefile", target, *(f"{name}={it}" for name, it in given.items())],
        cwd=tmp_path,
    )
    assert f"[{TYPED.replace('$$', '$')}]" in done.stdout, done.stderr
    assert not list(tmp_path.rglob("x"))


NO_LESSON = "There is no lesson 04; touch x: give LESSON= one of 00, 01,"
REFUSED = {  # a command with arguments that it does not know, and what it says
    ("reset.py", "04; touch x"): NO_LESSON,
    ("reset.py", "--catch-up", "04; touch x"): NO_LESSON,
    ("test.py", "--lesson", "04; touch x"): NO_LESSON,
    ("test.py", "--lesson", ""): "No lesson was given: give LESSON= one of 00, 01,",
    ("horovod.py", "--wrong"): "python tools/horovod.py",
    ("lessons.py", "--wrong"): "unrecognized arguments: --wrong",
    ("planted_bugs.py", "--wrong"): "unrecognized arguments: --wrong",
    ("bench.py", "--launches", "0"): "or more",
    ("bench.py", "--steps", "6"): "or more",
}


@pytest.mark.parametrize("command", REFUSED, ids=" ".join)
def test_arguments_that_a_tool_does_not_know_are_refused(command, monkeypatch, capfd):
    """A refusal is a sentence about a lesson, or goes to stderr; nothing is done."""
    monkeypatch.setattr(sys, "argv", list(command))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools" / command[0]), run_name="__main__")
    said = capfd.readouterr()
    if isinstance(ended.value.code, str):  # which Python prints
        said = said._replace(err=f"{said.err}{ended.value.code}")
    assert ended.value.code not in (None, 0)
    assert REFUSED[command] in said.out + said.err
    assert said.out.count("\n") == ("lesson" in REFUSED[command])


def test_programs_in_the_background_take_interrupts_and_so_do_those_below():
    inner = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    outer = f"""import subprocess, sys, interrupts
for change in (lambda: None, interrupts.accept):
    change()
    print(subprocess.run([sys.executable, "-c", {inner!r}]).returncode)"""
    done = run_program(
        ["sh", "-c", f'trap "" INT; exec "{sys.executable}" -c "$0"', outer],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
    )
    assert done.stdout.split() == ["0", "-2"]
