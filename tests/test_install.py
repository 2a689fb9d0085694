"""What is installed, what may be left out, and who is told: pip is played by a function here."""

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import install
import pytest

from bootcamp.launcher import arguments

ROOT = Path(__file__).resolve().parents[1]

MAKE = shutil.which("make")
NOBODY = 65534


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Plays pip: asked are the last words of its calls, fails is the one that ends with 7."""
    played = SimpleNamespace(asked=[], folders=set(), fails=None, here={}, absent=())

    def run(arguments, cwd):
        if played.fails == "interrupted":
            raise KeyboardInterrupt
        assert arguments[arguments.index("--constraint") + 1] == "constraints.txt"
        played.folders.update(arguments[n + 1] for n, a in enumerate(arguments) if a == "--dest")
        played.asked.append(arguments[-1])
        if arguments[-1] == played.fails:
            return SimpleNamespace(returncode=7)
        named = ["bootcamp" if each == "." else each for each in arguments]
        names = [install.plain(each) for each in named if each[0].isalpha()]
        pins = {"bootcamp": install.project()["project"]["version"], **install.pins()}
        played.here |= {n: pins[n] for n in names if n in pins and n not in played.absent}
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(install, "versions_here", lambda: played.here)
    monkeypatch.setattr(install.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["install.py"])
    return played


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["install.py", *arguments])
    return install.main()


def last(group):
    """The last word of pip's arguments for a group."""
    return install.groups()[group][-1]


def test_reader_gets_what_a_lesson_needs_and_nothing_twice(pip, capsys, monkeypatch, tmp_path):
    assert call(monkeypatch) == 0
    assert pip.asked == ["torch", "setuptools", last("lab")]
    assert (tmp_path / ".ready").exists()
    assert call(monkeypatch) == 0, "as after an edit of another line of pyproject.toml"
    assert len(pip.asked) == 3
    assert call(monkeypatch, "serving") == 0
    assert pip.asked[3:] == [last("serving")]
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "1 of 1: the group serving ...", "nothing is said of what is not left out"
    pip.here["numpy"] = "1.0"
    assert call(monkeypatch) == 0
    assert pip.asked[4:] == ["torch", "setuptools", last("lab")], "another version than the pin"


def test_all_installs_every_group_but_horovods(pip, monkeypatch):
    assert call(monkeypatch, "all") == 0
    others = [name for name in install.groups() if name not in (*install.READER, *install.LATER)]
    assert pip.asked == ["torch", "setuptools", last("lab"), *map(last, others)]


def test_download_fetches_all_and_what_horovod_is_built_from(pip, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "--download", "wheels") == 0
    assert pip.folders == {str(tmp_path / "wheels")}, "where the command was given"
    others = [name for name in install.groups() if name not in install.READER]
    import horovod

    source = f"horovod=={horovod.VERSION}"
    assert pip.asked == ["torch", "setuptools", last("lab"), *map(last, others), source]


@pytest.mark.parametrize("group", ["frameworks", "deepspeed", "megatron"])
@pytest.mark.parametrize("why", ["pip fails", "not for this Python"])
def test_last_lines_say_what_is_left_out_and_how_to_try_again(group, why, pip, capsys, monkeypatch):
    """Where a marker leaves a package out, pip ends well and says nothing."""
    pip.fails = last(group) if why == "pip fails" else None
    pip.absent = {install.plain(last(group))}
    monkeypatch.setattr(sys, "executable", "/zoë m/.venv/bin/python")
    assert call(monkeypatch, "all") == 0
    *_, first, final = capsys.readouterr().out.splitlines()
    assert first.startswith(f"Not installed: the group {group} ({install.groups()[group][0]}")
    assert first.endswith(install.OPTIONAL[group])
    again = shlex.split(final.removeprefix("All else is installed. To try again: "))
    assert again == ["/zoë m/.venv/bin/python", "install.py", "all"]


def test_without_what_everybody_needs_it_stops(pip, capsys, monkeypatch):
    pip.fails = "torch"
    assert call(monkeypatch) == 7
    assert "torch was not installed: pip's reason is above" in capsys.readouterr().out
    assert pip.asked == ["torch"]
    pip.fails = "interrupted"
    assert call(monkeypatch) == install.INTERRUPTED
    assert capsys.readouterr().out.endswith("Interrupted: the same command goes on where it was.\n")


def test_read_only_environments_and_full_disks_are_named(pip, capsys, monkeypatch):
    def disk(*free):
        rest = iter(free)
        monkeypatch.setattr(
            install.shutil, "disk_usage", lambda _: SimpleNamespace(free=next(rest))
        )

    def none():
        raise FileNotFoundError

    monkeypatch.setattr(install.site, "ENABLE_USER_SITE", False)
    with monkeypatch.context() as patch:
        patch.setattr(install.os, "access", lambda *_, **__: False)
        assert call(monkeypatch) == 1
        assert capsys.readouterr().out.endswith("can't be written by this user.\n")
        patch.setattr(install.os, "access", lambda *_, effective_ids=False: effective_ids)
        disk(1e6)
        assert call(monkeypatch) == 1
        assert capsys.readouterr().out.endswith(" is full.\n"), "asked with the rights of pip"
        patch.setattr(install.tempfile, "gettempdir", none)
        assert call(monkeypatch) == 1
        assert "there is no folder for temporary files" in capsys.readouterr().out
    assert pip.asked == []
    disk(1e9, 1e9, 1e6)
    pip.fails = "torch"
    assert call(monkeypatch) == 7
    assert capsys.readouterr().out.endswith(" is full. Then the same command goes on.\n")


@pytest.mark.parametrize("wrong", [["--download"], ["--download", ""], ["--upload", "x"], ["x"]])
def test_other_arguments_install_nothing(wrong, pip, monkeypatch):
    """An empty name among them, as of a variable that is not set: it is no call without a name."""
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *wrong)
    assert ended.value.code == 2
    assert not pip.asked


def test_folder_for_wheels_that_can_not_be_one_is_a_sentence(pip, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    assert call(monkeypatch, "--download", str(tmp_path / "file")) == 1
    assert capsys.readouterr().out.endswith("file can't be a folder (File exists).\n")
    assert not pip.asked


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
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    def make(*arguments, **options):
        return subprocess.run(
            [MAKE, f"PYTHON={python}", "VENV=env", "--no-print-directory", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            **options,
        )

    return make


needs_make = pytest.mark.skipif(MAKE is None, reason="there is no make")


@pytest.mark.skipif(MAKE is None or os.geteuid() != 0, reason="root and make are needed to try")
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


@needs_make
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


@needs_make
def test_environment_whose_python_does_not_start_is_named(course, tmp_path):
    """Such as one under somebody's home folder, or one that has been removed since."""
    (tmp_path / "env" / ".ready").touch()
    (tmp_path / "env" / "bin" / "python").write_text("#!/gone/python\n")
    done = course("lab")
    assert done.returncode == 2
    assert done.stdout.startswith("env/bin/python can't be started by this user: build env with")


@needs_make
@pytest.mark.parametrize("venv", ["/a b/.venv", ""])
def test_venv_with_a_blank_is_refused_in_one_sentence(venv, course):
    done = course("lab", f"VENV={venv}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f'VENV is "{venv}", and make can\'t work with' in done.stderr
    assert len(done.stderr.splitlines()) == 1


@needs_make
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
