"""The preflight: each shortage is real (a hidden package, a bound port, one core), and is named."""

import ast
import contextlib
import json
import re
import shlex
import socket
import sys
import types
from pathlib import Path

import preflight
import preflight_checks as checks
import psutil
import pytest
from processes import run_program

from bootcamp.launcher import process_tree

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "preflight.py"

BARE = [sys._base_executable, "-I", "-S"]  # the system's own Python: no package at all


def run(only, python=(sys.executable,)):
    """Run the tool in a process: (exit code, what it prints, its rows by the check's name)."""
    done = run_program([*python, str(TOOL), "--json", "--only", only], timeout=120)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["ready"] == (done.returncode == 0)
    return done.returncode, said, {row["check"]: row for row in said["checks"]}


def check(*only):
    """Run checks in this process: their rows by name."""
    rows = preflight.run_checks(types.SimpleNamespace(only=only))
    return {row["check"]: row for row in rows}


def test_this_machine_is_ready_for_the_lessons():
    """All but the launch, which takes long where much else is running."""
    code, said, rows = run("python,packages,cores,memory,gpus,disk,extras")
    assert code == 0, [row for row in rows.values() if row["verdict"] == checks.NOT_READY]
    assert said["host"] == socket.gethostname()
    assert rows["Python"]["verdict"] == rows["packages: lab"]["verdict"] == checks.READY
    assert all(row["to do"] or row["verdict"] == checks.READY for row in rows.values())
    for name in ("simulated hosts", "C++ compiler", "Chromium", "device leases"):
        assert rows[name]["needed"], name


def test_before_the_installation_a_machine_can_be_installed(tmp_path):
    """The system's Python without a package: exit code 0, and how much disk each part takes."""
    code, said, rows = run("python,packages,cores,disk,launch", python=BARE)
    assert (code, said["verdict"]) == (0, checks.TO_INSTALL)
    assert rows["packages: core"]["found"] == "missing: torch, numpy, filelock, psutil"
    assert rows["packages: core"]["verdict"] == checks.TO_INSTALL
    assert rows["packages: core"]["to do"].startswith("make lab installs it")
    assert rows["packages: serving"]["verdict"] == checks.READY, "it comes with its lesson"
    assert rows["ranks talk"]["verdict"] == checks.TO_INSTALL
    for part in ("environment", "Horovod", "Triton", "a full course"):
        assert part in rows["disk: free"]["needed"]
    assert preflight.verdict(said["checks"]).startswith("Can be installed: make lab.")


@pytest.mark.parametrize(
    ("package", "group", "verdict"),
    [
        ("torch", "core", checks.NOT_READY),
        ("jupyterlab", "lab", checks.NOT_READY),
        ("jupytext", "test", checks.LIMITS),
    ],
)
def test_missing_package_is_named_with_what_installs_it(package, group, verdict, monkeypatch):
    """make takes an environment for complete in which the installation has ended."""
    monkeypatch.setattr(checks, "is_made", lambda: True)
    monkeypatch.setenv("BOOTCAMP_WITHOUT", package)
    monkeypatch.setattr(sys, "executable", "/zoë m/.venv/bin/python")
    rows = check("packages", "launch") if package == "torch" else check("packages")
    row = rows[f"packages: {group}"]
    missing = row["found"].removeprefix("missing: ").split(", ")
    assert package in missing
    assert row["verdict"] == verdict
    python, *given = shlex.split(row["to do"])
    assert python == "/zoë m/.venv/bin/python", "it can be pasted where the path has a blank"
    assert given == ["tools/install.py", *([group] if group == "test" else [])]
    if package == "torch":
        assert "not tried" in rows["ranks talk"]["found"]


def test_old_python_is_told_so_and_nothing_else(monkeypatch):
    """No module of the course is loaded: it could not be read."""
    for file in (TOOL, TOOL.with_name("preflight_checks.py")):
        ast.parse(file.read_text(), feature_version=(3, 8))
    monkeypatch.setattr(checks.sys, "version_info", (3, 8, 18))
    monkeypatch.setattr(checks, "CHECKS", {})
    (row,) = check("python", "cores", "launch").values()
    assert row["verdict"] == checks.NOT_READY
    assert "make PYTHON=" in row["to do"]


@pytest.mark.slow
def test_ranks_really_talk():
    """The launch in this process, without the time limit that a busy machine may not keep."""
    done = run_program([sys.executable, str(TOOL), "--measure"], timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, "its supervisor did, at its end, since Python 3.12"
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["rate"] > 0
    assert f"{said['ranks']} ranks, {said['backend']}: " in preflight.judge(**said)["found"]
    assert preflight.judge(**{**said, "rate": 1e6})["verdict"] == checks.LIMITS


@pytest.mark.parametrize(
    ("program", "seconds", "verdict", "found"),
    [
        ("raise SystemExit('no rank came')", 60, checks.NOT_READY, "no rank came"),
        ("", 60, checks.NOT_READY, "failed"),
        ("import time; time.sleep(600)", 1, checks.LIMITS, "no result after 1 s"),
        ("import os; os.kill(os.getppid(), 2)\nimport time; time.sleep(600)", 60, None, None),
    ],
)
def test_launch_that_fails_hangs_or_is_interrupted_leaves_nothing(
    program, seconds, verdict, found, monkeypatch, tmp_path
):
    (tmp_path / "measures.py").write_text(f"open({str(tmp_path / 'began')!r}, 'w')\n{program}")
    monkeypatch.setattr(preflight, "__file__", str(tmp_path / "measures.py"))
    monkeypatch.setattr(preflight, "MEASURE_SECONDS", seconds)
    monkeypatch.setattr(preflight.tempfile, "tempdir", str(tmp_path))
    with contextlib.suppress(KeyboardInterrupt):
        row = preflight.ranks_talk()
        assert (row["verdict"], row["found"]) == (verdict, found)
    commands = [process_tree.read_command(each.pid) for each in psutil.Process().children()]
    left = [command for command in commands if "measures.py" in command]
    assert (left, sorted(path.name for path in tmp_path.iterdir())) == (
        [],
        ["began", "measures.py"],
    )


def free(size):
    return {"shutil.disk_usage": lambda _: types.SimpleNamespace(free=size)}


NOT_MADE = {"is_made": lambda: False}
TOO_LONG = f"/tmp/{'x' * checks.LONGEST_PATH}"


@pytest.mark.parametrize(
    ("row", "found", "verdict"),
    [
        ("disk: free", free(1e9) | NOT_MADE, checks.NOT_READY),
        ("disk: free", free(12.5e9) | NOT_MADE, checks.LIMITS),
        ("disk: free", free(1e12) | NOT_MADE, checks.READY),
        ("temporary files", {"tempfile.tempdir": "/tmp"}, checks.READY),
        ("temporary files", {"tempfile.tempdir": TOO_LONG}, checks.LIMITS),
        ("shared memory", free(1e6), checks.LIMITS),
    ],
)
def test_shortages_are_told_by_how_much_they_matter(row, found, verdict, monkeypatch):
    for name, value in found.items():
        monkeypatch.setattr(f"preflight_checks.{name}", value)
    named = {"shared memory": "temporary"}
    assert check(named.get(row, re.split("[: ]", row)[0]))[row]["verdict"] == verdict


def test_table_ends_with_a_verdict_that_names_the_limits(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["preflight.py", "--only", "python,extras"])
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    assert preflight.main() == 0
    *_, said = capsys.readouterr().out.splitlines()
    assert said.startswith("Ready, with limits: ")
    assert "simulated hosts" in said
    monkeypatch.setattr(sys, "argv", ["preflight.py", "--only", ""])
    with pytest.raises(SystemExit, match="2"):
        preflight.main()


def test_class_is_collected_by_who_needs_help(tmp_path, capsys):
    good = checks.row("cores", "4", "2")
    bad = checks.row("disk: free", "1 GB", "4 GB", checks.NOT_READY, "Free some space")
    new = checks.row("packages: core", "missing: torch", "pins", checks.TO_INSTALL, "make lab")
    for name, row in (("ann", good), ("bob", bad), ("cleo", new)):
        said = json.dumps({"host": "box", "user": "student", "checks": [row]})
        (tmp_path / f"{name}.json").write_text(said)
    (tmp_path / "cid.json").write_text("{")
    files = sorted(str(path) for path in tmp_path.glob("*.json"))
    assert preflight.collect(files) == 1
    line = {Path(x.split(".json")[0]).name: x for x in capsys.readouterr().out.splitlines()}
    assert list(line) == ["bob", "cid", "cleo", "ann"]
    assert "student on box" in line["ann"]
    assert "Not ready: disk: free." in line["bob"]
    assert "Can be installed: make lab." in line["cleo"]
    assert "is not a result of make preflight JSON=1" in line["cid"]
    assert preflight.collect([files[0]]) == 0
