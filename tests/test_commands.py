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

ROOT = Path(__file__).resolve().parents[1]

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


def test_a_lab_that_ends_is_not_waited_for_and_says_why(tmp_path):
    given = {**os.environ, "LESSON": "99"}
    with (
        pytest.raises(lab.LabError, match="There is no lesson 99"),
        lab.serving(tmp_path, "token", given),
    ):
        pass


@pytest.mark.skipif(MAKE is None, reason="there is no make")
@pytest.mark.parametrize("target", ["reset", "catch-up", "slides", "test"])
@pytest.mark.parametrize("lesson", ["04; touch x", "$$(touch x)", "`touch x`", "' touch x '"])
def test_what_is_typed_for_a_lesson_is_never_a_command(target, lesson, tmp_path):
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["reset.py", "04; touch x"],
        ["reset.py", "--catch-up", "04; touch x"],
        ["test.py", "--lesson", "04; touch x"],
        ["test.py", "--lesson", ""],
    ],
)
@pytest.mark.slow
def test_a_lesson_that_is_not_there_is_refused_in_one_sentence(arguments):
    tool = ROOT / "tools" / arguments[0]
    done = subprocess.run(
        [sys.executable, tool, *arguments[1:]], capture_output=True, text=True, timeout=60
    )
    given = f"There is no lesson {arguments[-1]}" if arguments[-1] else "No lesson was given"
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(f"{given}: give LESSON= one of 00, 01,")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("cluster.py", "python3 tools/cluster.py"),
        ("horovod.py", "python tools/horovod.py"),
        ("lessons.py", "unrecognized arguments: --wrong"),
        ("manifests.py", "no file '--wrong' to check: there are kubeflow.yaml,"),
        ("planted_bugs.py", "unrecognized arguments: --wrong"),
    ],
)
def test_an_argument_that_a_tool_does_not_know_is_refused_and_nothing_is_done(tool, says):
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--wrong"],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("tool", "wrong"),
    [
        ("accuracy", ["--times", "0"]),
        ("bench", ["--launches", "0"]),
        ("bench", ["--steps", "6"]),
        ("drills", ["--warm", "-1"]),
    ],
)
@pytest.mark.slow
def test_numbers_of_which_nothing_can_be_said_are_refused(tool, wrong):
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / f"{tool}.py", *wrong], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "or more" in done.stderr.splitlines()[-1]
    assert not done.stdout


LEAVES = """import multiprocessing, os
from multiprocessing import resource_tracker
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
os.kill({kill}, 9)
os._exit(0)"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="semaphores are no files here")
@pytest.mark.parametrize(
    ("kill", "left"), [("resource_tracker._resource_tracker._pid", 1), ("os.getpid()", 0)]
)
def test_a_semaphore_that_stays_fails_the_run_of_all_tests(kill, left, tmp_path):
    """A program is killed: either what would take its semaphore away, or itself."""
    part = [sys.executable, "-c", LEAVES.format(kill=kill)]
    run = f"test.run_all({{'part': {part}}}, test.Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, test; sys.exit({run})"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), str(ROOT / "src")])},
        capture_output=True,
        text=True,
    )
    name = f"sem.{done.stdout.splitlines()[1].removeprefix('/')}"
    Path("/dev/shm", name).unlink(missing_ok=not left)
    assert (name in done.stdout.partition("Semaphores left")[2]) == left, done.stderr
    if left:
        assert done.stdout.endswith("FAILED: semaphores left\n")
        assert done.returncode == 1


def copy_of_what_make_compares(folder):
    """A folder in which the environment is newer than what it is made from."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)
        os.utime(folder / name, (0, 0))
    return folder


@pytest.mark.parametrize(("apt", "calls"), [(1, []), (0, ["cluster", "horovod", "triton", "test"])])
def test_ci_fails_where_chromium_can_not_be_installed(apt, calls, tmp_path):
    """apt-get fails or works, make writes down what it was called for."""
    fakes = {
        "apt-get": f"exit {apt}",
        "id": "echo 0",
        "g++": "exit 0",
        "make": f'echo "$1" >> {tmp_path}/made',
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [tmp_path / "bash", ROOT / ".ci" / "run"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == bool(calls), done.stderr
    made = tmp_path / "made"
    assert (made.read_text().split() if made.exists() else []) == calls
    if apt:
        assert "could not be installed" in done.stderr
        assert "chromium" in done.stderr


def test_ci_says_what_to_install_where_it_may_not(tmp_path):
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [tmp_path / "bash", ROOT / ".ci" / "run"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Install first: chromium g++" in done.stderr


def test_a_program_in_the_background_takes_interrupts_and_so_do_those_that_it_starts():
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
