"""Ordinary users: no right to write into the clone, blanks in paths, little memory to share."""

import os
import subprocess
import sys

import lab

from bootcamp.launcher import forkserver
from bootcamp.paths import ROOT

FOLDERS = "from bootcamp.paths import LOGS, OWN, WORK; print(OWN, LOGS, WORK, sep='\\n')"


def test_runs_of_who_may_not_write_into_the_clone_go_home(tmp_path):
    """Root may write everywhere, so access() is told otherwise."""
    code = f"import os; os.access = lambda *_, **__: False\n{FOLDERS}"
    env = {name: v for name, v in os.environ.items() if not name.startswith("BOOTCAMP_")}
    command = [sys.executable, "-c", code]
    env |= {"HOME": str(tmp_path / "zoë m")}
    said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True).stdout
    own = tmp_path / "zoë m" / "bootcamp"
    assert said.splitlines() == [str(own), str(own / "logs"), str(own / "notebooks" / "work")]


def test_lab_opens_copies_where_runs_go_home(tmp_path):
    """Both ask for the rights that a write has, and those of the real user are others here."""
    code = f"""if True:
        import os, runpy, sys
        clone = lambda path: str(path).endswith("notebooks")
        os.access = lambda path, _, effective_ids=False: effective_ids != clone(path)
        os.execve = lambda program, arguments, environment: print(*arguments, os.getcwd())
        sys.path.insert(0, {str(ROOT / "tools")!r})
        sys.argv = ["lab.py"]
        runpy.run_path({lab.__file__!r}, run_name="__main__")
    """
    env = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True).stdout
    own = tmp_path / "bootcamp"
    assert f"--ServerApp.root_dir={own} " in said
    assert said.endswith(f" {own}\n")
    assert (own / "notebooks" / "00_start_here.ipynb").is_file()


def test_copies_of_notebooks_are_made_once_and_stay(tmp_path, capsys):
    """Also where a link leads to nowhere."""
    own = tmp_path / "bootcamp"
    (own / "src").mkdir(parents=True)
    (own / "src" / "snippets").symlink_to(tmp_path / "moved")
    lab.own_copies(own)
    first = own / "notebooks" / "00_start_here.ipynb"
    assert first.read_bytes() == (ROOT / "notebooks" / first.name).read_bytes()
    assert (own / "src" / "snippets" / "horovod_ring.py").is_file()
    assert str(own) in capsys.readouterr().err
    first.write_text("mine")
    lab.own_copies(own)
    assert first.read_text() == "mine"


def test_warm_python_starts_where_its_path_has_blanks_and_quotes(tmp_path, monkeypatch):
    python = tmp_path / "zoë's course" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(forkserver.sys, "executable", str(python))
    forkserver.install_shims(tmp_path / "bin")
    command = [tmp_path / "bin" / "python", "-c", "import sys; print(*sys.argv[1:])", "a b"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "a b\n"
