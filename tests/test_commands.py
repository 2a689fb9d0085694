"""The commands of a fresh clone: what they refuse, what they leave alone.

Nothing is installed and no server is started here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jupyter_core.paths
import lab
import pytest
from jupyterlab_server.config import get_page_config

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
    monkeypatch.setenv("LESSON", "99")
    with pytest.raises(lab.lessons.LessonError, match="There is no lesson 99"):
        lab.command()


def test_labs_that_end_are_not_waited_for_and_say_why(tmp_path):
    given = {**os.environ, "LESSON": "99"}
    with (
        pytest.raises(lab.LabError, match="There is no lesson 99"),
        lab.serving(tmp_path, "token", given),
    ):
        pass


@pytest.mark.skipif(MAKE is None, reason="there is no make")
@pytest.mark.parametrize("target", ["reset", "catch-up", "slides", "test", "course", "claims"])
@pytest.mark.parametrize("lesson", ["04; touch x", "$$(touch x)", "`touch x`", "' touch x '"])
def test_lessons_that_are_typed_are_never_a_command(target, lesson, tmp_path):
    """Only the tool gets it, as one argument; here a shell script that prints it."""
    ready, complete, fake = (tmp_path / name for name in (".ready", ".complete", "python"))
    ready.write_text("")
    complete.write_text("")
    fake.write_text('#!/bin/sh\nfor last; do :; done\necho "[$last]"\n')
    fake.chmod(0o755)
    given = [
        f"LESSON={lesson}",
        f"RECORDS={lesson}",
        f"READY={ready}",
        f"COMPLETE={complete}",
        f"PY={fake}",
    ]
    done = subprocess.run(
        [MAKE, "-f", ROOT / "Makefile", target, *given],
        cwd=copy_of_what_make_compares(tmp_path),
        capture_output=True,
        text=True,
    )
    assert f"[{lesson.replace('$$', '$')}]" in done.stdout, done.stderr
    assert not list(tmp_path.rglob("x"))


NO_LESSON = "There is no lesson 04; touch x: give LESSON= one of 00, 01,"
REFUSED = [  # a command with arguments that it does not know, and what it says
    (["reset.py", "04; touch x"], NO_LESSON),
    (["reset.py", "--catch-up", "04; touch x"], NO_LESSON),
    (["test.py", "--lesson", "04; touch x"], NO_LESSON),
    (["test.py", "--lesson", ""], "No lesson was given: give LESSON= one of 00, 01,"),
    (["horovod.py", "--wrong"], "python tools/horovod.py"),
    (["lessons.py", "--wrong"], "unrecognized arguments: --wrong"),
    (["planted_bugs.py", "--wrong"], "unrecognized arguments: --wrong"),
    (["recorders/accuracy.py", "--times", "0"], "or more"),
    (["bench.py", "--launches", "0"], "or more"),
    (["bench.py", "--steps", "6"], "or more"),
    (["drills.py", "--times", "0"], "or more"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"), REFUSED, ids=[" ".join(command) for command, _ in REFUSED]
)
def test_arguments_that_a_tool_does_not_know_are_refused_and_nothing_is_done(command, says):
    tool, *arguments = command
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, *arguments],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (1, 2)
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == ("lesson" in says), "a sentence about a lesson, or nothing"


def copy_of_what_make_compares(folder):
    """A folder in which the environment is newer than what it is made from."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)
        os.utime(folder / name, (0, 0))
    return folder


def run_ci(folder: Path, **programs: str) -> subprocess.CompletedProcess:
    """Run .ci/run where only these programs are, each a line of shell."""
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    for name in ("bash", "dirname", "sh"):
        (folder / name).symlink_to(shutil.which(name))
    command = [folder / "bash", ROOT / ".ci" / "run"]
    return subprocess.run(command, env={"PATH": str(folder)}, capture_output=True, text=True)


@pytest.mark.parametrize(("apt", "calls"), [(1, []), (0, ["cluster", "horovod", "triton", "test"])])
def test_ci_fails_where_chromium_can_not_be_installed(apt, calls, tmp_path):
    """apt-get fails or works, make writes down what it was called for."""
    programs = {"apt-get": f"exit {apt}", "id": "echo 0", "g++": "exit 0"}
    programs["make"] = f'echo "$1" >> {tmp_path}/made'
    done = run_ci(tmp_path, **programs)
    assert (done.returncode == 0) == bool(calls), done.stderr
    made = tmp_path / "made"
    assert (made.read_text().split() if made.exists() else []) == calls
    if apt:
        assert "could not be installed" in done.stderr
        assert "chromium" in done.stderr


def test_ci_says_what_to_install_where_it_may_not(tmp_path):
    done = run_ci(tmp_path)
    assert done.returncode == 1
    assert "Install first: chromium g++" in done.stderr


def test_programs_in_the_background_take_interrupts_and_so_do_those_below():
    inner = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    outer = (
        "import subprocess, sys, interrupts\n"
        "interrupts.accept()\n"
        f"print(subprocess.run([sys.executable, '-c', {inner!r}]).returncode)"
    )
    found = {}
    for name, program in {"accepts": outer, "does not": outer.replace(".accept()", "")}.items():
        command = f'trap "" INT; exec "{sys.executable}" -c "$0"'
        done = subprocess.run(
            ["sh", "-c", command, program],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
        )
        found[name] = done.stdout.strip()
    assert found == {"accepts": "-2", "does not": "0"}
