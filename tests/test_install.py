"""What is installed, what may be left out, and who is told: pip is played by a function here."""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import install
import pytest

ROOT = Path(__file__).resolve().parents[1]

MAKE = shutil.which("make")
NOBODY = 65534
STEPS = 6  # three for everybody, and three groups


def groups_of(steps):
    """The groups that each step installs."""
    asked = [each for arguments, _ in steps for each in arguments if each.startswith(".[")]
    return [each[2:-1].split(",") for each in asked]


@pytest.fixture
def pip(monkeypatch):
    """Plays pip: asked are the last words of its calls, fails is the one that ends with 7."""
    played = SimpleNamespace(asked=[], fails=None, absent=(), folders=set())

    def run(arguments, cwd):
        played.folders.update(arguments[n + 1] for n, a in enumerate(arguments) if a == "--dest")
        played.asked.append(arguments[-1])
        if played.fails == "interrupted":
            raise KeyboardInterrupt
        return SimpleNamespace(returncode=7 if arguments[-1] == played.fails else 0)

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(install, "absent", lambda group: group in played.absent)
    monkeypatch.setattr(sys, "argv", ["install.py"])
    return played


def test_every_group_is_installed_and_those_that_may_fail_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, alone = groups_of(install.steps()), [g for g in install.OPTIONAL if g != "horovod"]
    assert sorted([*sum(found, []), "horovod"]) == sorted(project["optional-dependencies"])
    assert found[1:] == [[name] for name in alone]
    for arguments, group in install.steps():
        assert arguments[1:3] == ["--constraint", "constraints.txt"]
        assert group == (arguments[-1][2:-1] if arguments[-1][2:-1] in alone else None)


def test_what_is_downloaded_is_what_is_installed_and_what_horovod_is_built_from():
    *there, group, source = install.steps("wheels")
    assert groups_of(there) == groups_of(install.steps())
    for fetched, installed in zip(there, install.steps(), strict=True):
        assert fetched[0][:3] == ["download", "--dest", "wheels"]
        assert fetched[0][-1] == installed[0][-1]
    assert group[0][-1] == ".[horovod]"
    assert (source[0][-1], source[1]) == (f"horovod=={install.horovod.VERSION}", "horovod")
    assert "tools/install.py --download" in (ROOT / "slides" / "kit" / "room.md").read_text()


@pytest.mark.parametrize("group", ["frameworks", "deepspeed", "megatron"])
@pytest.mark.parametrize("why", ["pip fails", "not for this Python"])
def test_the_last_lines_say_what_is_left_out(group, why, pip, capsys):
    """Where a marker leaves a package out, pip ends well and says nothing."""
    if why == "pip fails":
        pip.fails = f".[{group}]"
    else:
        pip.absent = (group,)
    assert install.main() == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"Not installed: the group {group} ({install.groups()[group][0]}")
    assert first.endswith(install.OPTIONAL[group])
    assert last.startswith("All else is installed. To try again: ")
    assert len(pip.asked) == STEPS


def test_the_command_to_try_again_can_be_pasted_where_a_path_has_a_blank(pip, capsys, monkeypatch):
    given = ["/zoë m/.venv/bin/python", "tools/install.py"]
    monkeypatch.setattr(sys, "executable", given[0])
    monkeypatch.setattr(sys, "argv", given[1:])
    pip.fails = ".[deepspeed]"
    assert install.main() == 0
    said = capsys.readouterr().out.strip()
    assert shlex.split(said.rpartition("To try again: ")[2]) == given


def test_nothing_is_said_where_nothing_is_left_out(pip, capsys):
    assert install.main() == 0
    assert capsys.readouterr().out == ""


def test_what_a_marker_leaves_out_is_absent(monkeypatch):
    needs = {"here": ["pytest>=1", "Pytest_Timeout"], "not": ["pytest", "gone; python_version<'3'"]}
    monkeypatch.setattr(install, "groups", lambda: needs)
    assert not install.absent("here")
    assert install.absent("not")


def test_without_what_everybody_needs_it_stops(pip, capsys, monkeypatch):
    pip.fails = "torch"
    assert install.main() == 7
    assert capsys.readouterr().out.startswith("torch was not installed: pip's reason is above")
    assert pip.asked == ["torch"]


def test_an_environment_that_is_read_only_and_a_full_disk_are_named(pip, capsys, monkeypatch):
    monkeypatch.setattr(install.site, "ENABLE_USER_SITE", False)
    monkeypatch.setattr(install.os, "access", lambda *_, **__: False)
    assert install.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("Nothing was installed: ")
    assert said.endswith("can't be written by this user.\n")
    monkeypatch.setattr(install.os, "access", lambda *_, **__: True)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: SimpleNamespace(free=1e6))
    assert install.main() == 1
    assert capsys.readouterr().out.endswith(" is full.\n")
    assert pip.asked == []


def test_downloads_go_where_the_command_was_given(pip, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["install.py", "--download", "wheels"])
    assert install.main() == 0
    assert pip.folders == {str(tmp_path / "wheels")}


def test_disks_that_are_full_leave_no_folder_for_temporary_files(pip, capsys, monkeypatch):
    def none():
        raise FileNotFoundError

    monkeypatch.setattr(install.tempfile, "gettempdir", none)
    assert install.main() == 1
    assert capsys.readouterr().out.startswith("Nothing was installed: there is no folder for temp")
    assert pip.asked == []


def test_who_may_write_is_asked_with_the_rights_that_pip_has(monkeypatch, tmp_path):
    monkeypatch.setattr(install.os, "access", lambda *_, effective_ids=False: effective_ids)
    assert install.obstacle(str(tmp_path), instead=False) is None


@pytest.mark.parametrize("wrong", [["--download"], ["--download", ""], ["--upload", "x"], ["x"]])
def test_other_arguments_install_nothing(wrong, pip, capsys, monkeypatch):
    """An empty name among them, as of a variable that is not set: it is no call without a name."""
    monkeypatch.setattr(sys, "argv", ["install.py", *wrong])
    assert install.main() == 2
    assert capsys.readouterr().out.startswith("python tools/install.py [--download FOLDER]")
    assert not pip.asked


def test_a_folder_for_wheels_that_can_not_be_one_is_a_sentence(pip, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["install.py", "--download", str(tmp_path / "file")])
    assert install.main() == 1
    assert capsys.readouterr().out.endswith("file can't be a folder (File exists).\n")
    assert not pip.asked


def test_a_disk_that_fills_up_is_named_and_not_the_index(pip, capsys, monkeypatch):
    free = iter([1e9, 1e9, 1e6])
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free)))
    pip.fails = "torch"
    assert install.main() == 7
    said = capsys.readouterr().out
    assert said.startswith("torch was not installed: the disk of ")
    assert said.endswith(" is full. Then the same command goes on.\n")


def test_an_interrupted_installation_ends_in_a_sentence(pip, capsys):
    pip.fails = "interrupted"
    assert install.main() == install.INTERRUPTED
    assert capsys.readouterr().out == "Interrupted: the same command goes on where it was.\n"


def test_torch_can_come_from_another_index(monkeypatch):
    monkeypatch.setenv("TORCH_INDEX", "https://torch.example/cpu")
    with_index = [a[-1] for a, _ in install.steps() if "https://torch.example/cpu" in a]
    assert with_index == ["torch"]


@pytest.fixture
def read_only(tmp_path):
    """A course whose environment belongs to another user; returns a function that calls make."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    def make(*arguments):
        return subprocess.run(
            [MAKE, "VENV=env", f"PYTHON={python}", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )

    return make


@pytest.mark.skipif(MAKE is None or os.geteuid() != 0, reason="root and make are needed to try")
def test_who_may_not_write_to_an_environment_uses_it_as_it_is(read_only, tmp_path):
    done = read_only("lab")
    assert done.returncode == 2
    assert done.stdout == "env can't be written by this user: say make VENV=/path/to/another.\n"
    ready = tmp_path / "env" / ".ready"
    ready.touch()
    os.utime(ready, (0, 0))  # older than pyproject.toml, as where a clone is newer
    done = read_only("lab")
    assert done.stdout.splitlines()[-1] == "tools/lab.py", done.stdout + done.stderr
    assert "Installing" not in done.stdout


@pytest.mark.skipif(MAKE is None, reason="there is no make")
@pytest.mark.parametrize("version", ["Python 3.10.13", "Python 2.7.18"])
def test_an_old_python_is_refused_in_one_sentence(version, tmp_path):
    """Python 2 writes its version to stderr."""
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo {version} >&2\nexit 1\n")
    old.chmod(0o755)
    given = [f"PYTHON={old}", f"VENV={tmp_path / 'env'}", "--no-print-directory"]
    done = subprocess.run([MAKE, "-C", ROOT, *given, "install"], capture_output=True, text=True)
    needed = "the course needs Python 3.11 or newer, say make PYTHON=python3.12."
    assert done.stdout == f"{version} is too old: {needed}\n"
    assert not (tmp_path / "env").exists()
