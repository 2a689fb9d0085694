"""The preflight: each shortage is real (a hidden package, a bound port, one core), and is named."""

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "preflight.py"
sys.path.insert(0, str(ROOT / "tools"))
import preflight  # noqa: E402

BARE = [sys._base_executable, "-I", "-S"]  # the system's own Python: no package at all


def check(*arguments, python=(sys.executable,), env=(), **options):
    """Run the tool: (exit code, its rows by the check's name)."""
    done = subprocess.run(
        [*python, str(TOOL), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **dict(env)},
        **options,
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["ready"] == (done.returncode == 0)
    assert said["host"] == socket.gethostname()
    return done.returncode, {row["check"]: row for row in said["checks"]}


def test_this_machine_is_ready_for_the_lessons():
    """All but the launch and the imports, which take long where much else is running."""
    code, rows = check(
        "--only", "python,packages,cores,memory,gpus,ports,disk,hosts,compiler,clock"
    )
    assert code == 0, [row for row in rows.values() if row["verdict"] == preflight.NOT_READY]
    assert rows["Python"]["verdict"] == rows["packages: lab"]["verdict"] == preflight.READY
    assert all(row["to do"] or row["verdict"] == preflight.READY for row in rows.values())


def test_ranks_really_talk():
    """The launch in this process, without the time limit that a busy machine may not keep."""
    done = subprocess.run(
        [sys.executable, str(TOOL), "--measure"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["backend"] in preflight.SLOWEST
    assert all(rate > 0 for rate in said["rates"].values())
    row = preflight._talk(**said)
    assert f"{said['ranks']} ranks, {said['backend']}: 64 KiB" in row["found"]
    crawl = {**said, "rates": {1 << 25: 1e6}}
    assert preflight._talk(**crawl)["verdict"] == preflight.LIMITS


def test_a_launch_that_fails_or_hangs_is_no_success(monkeypatch):
    for code, words in (("raise SystemExit('no rank came')", "no rank came"), ("", "failed")):
        launch = preflight.Launch.__new__(preflight.Launch)
        launch.deadline = preflight.time.monotonic() + 60
        launch.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=-1, stderr=-1, text=True
        )
        (row,) = launch.rows()
        assert (row["verdict"], row["found"]) == (preflight.NOT_READY, words)
    launch.process = subprocess.Popen(["sleep", "600"], stdout=-1, stderr=-1, text=True)
    launch.deadline = 0
    (row,) = launch.rows()
    assert row["found"].startswith("no result after")
    assert launch.process.poll() is not None, "it is still there"


@pytest.mark.parametrize(
    ("package", "group", "ready"),
    [("torch", "core", False), ("jupyterlab", "lab", False), ("jupytext", "test", True)],
)
def test_a_missing_package_is_named_with_its_pin(package, group, ready):
    only = "packages,launch" if package == "torch" else "packages"
    code, rows = check("--only", only, env={"BOOTCAMP_WITHOUT": package})
    row = rows[f"packages: {group}"]
    assert (code == 0) is ready
    assert row["found"] == f"missing: {package}"
    assert row["verdict"] == (preflight.LIMITS if ready else preflight.NOT_READY)
    assert f"pip install {package}==" in row["to do"]
    if package == "torch":
        assert "not tried" in rows["ranks talk"]["found"]


def test_another_version_than_the_pin_is_named(monkeypatch):
    pins = {**preflight._pins(), "numpy": "1.0"}
    monkeypatch.setattr(preflight, "_pins", lambda: pins)
    row = preflight.packages(None)[0]
    assert row["found"].startswith("numpy 2.")
    assert (row["verdict"], "numpy==1.0" in row["to do"]) == (preflight.LIMITS, True)


def test_before_anything_is_installed():
    """The system's Python without a package: the table comes, and says make lab."""
    code, rows = check("--only", "python,packages,imports,cores,ports,launch", python=BARE)
    assert code == 1
    assert rows["Python"]["verdict"] == preflight.READY
    assert rows["packages: core"]["found"] == "missing: torch, numpy"
    assert rows["packages: core"]["to do"].startswith("make lab installs everything")
    assert rows["ranks talk"]["verdict"] == preflight.NOT_READY
    assert "imports" not in rows


def test_an_old_python_is_told_so(monkeypatch):
    """What an old one runs: no module of the course is loaded."""
    monkeypatch.setattr(preflight.sys, "version_info", (3, 8, 18))
    options = preflight.argparse.Namespace(only=["python", "cores"], ports=(1, 1), lab_port=1)
    for name in ("python", "packages", "cores", "memory", "gpus", "disk", "hosts", "clock"):
        options.only = [name]
        for row in preflight.run_checks(options):
            assert "Error: " not in row["found"], row
    row = preflight.python(options)[0]
    assert row["verdict"] == preflight.NOT_READY
    assert "make PYTHON=" in row["to do"]


def test_it_parses_on_an_old_python():
    ast.parse(TOOL.read_text(), feature_version=(3, 8))


def test_ports_that_are_taken_are_counted():
    with (
        socket.create_server(("127.0.0.1", 0)) as holder,
        socket.create_server(("127.0.0.1", 0)) as lab,
    ):
        port, lab_port = holder.getsockname()[1], lab.getsockname()[1]
        given = ["--ports", f"{port}-{port}", "--lab-port", str(lab_port)]
        code, rows = check("--only", "ports", *given)
        assert code == 0, "launch takes a free port itself"
        row = rows["ports: rendezvous"]
        assert (row["found"], row["verdict"]) == (f"1 of 1 taken: {port}", preflight.LIMITS)
        assert f"sport = :{port}" in row["to do"]
        assert rows["ports: JupyterLab"]["found"] == f"{lab_port} is taken"
        assert rows["loopback"]["found"] == "connects"
    assert preflight._is_free(port)


def test_one_core_is_a_limit():
    """The affinity of a child process, really set."""
    one = min(os.sched_getaffinity(0))
    code, rows = check("--only", "cores", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    row = rows["cores"]
    assert code == 0
    assert row["found"].startswith("1 of ")
    assert row["verdict"] == preflight.LIMITS
    assert "docker --cpus" in row["to do"]


def test_logs_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    env = {"BOOTCAMP_LOGS": str(tmp_path / "file" / "logs")}
    code, rows = check("--only", "disk", env=env)
    assert code == 1
    assert "Not a directory" in rows["disk: logs"]["found"]
    assert "BOOTCAMP_LOGS" in rows["disk: logs"]["to do"]


def test_without_hosts_and_compiler_the_lessons_say_what_is_shown():
    env = {"BOOTCAMP_WITHOUT": "hosts,horovod", "BOOTCAMP_LEASES": "off"}
    code, rows = check("--only", "hosts,compiler,leases", env=env)
    assert code == 0
    assert {row["verdict"] for row in rows.values()} == {preflight.LIMITS}
    assert "lesson 08 shows recorded runs" in rows["simulated hosts"]["to do"]
    assert "lesson 05 shows a recorded run" in rows["C++ compiler"]["to do"]


def test_a_check_that_raises_hides_no_other(monkeypatch):
    monkeypatch.setitem(preflight.CHECKS, "gpus", lambda options: 1 / 0)
    options = preflight.argparse.Namespace(only=["gpus", "cores"])
    rows = {row["check"]: row for row in preflight.run_checks(options)}
    assert "ZeroDivisionError" in rows["gpus"]["found"]
    assert "cores" in rows


def test_the_table_wraps_and_ends_with_a_verdict(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["preflight.py", "--only", "cores,hosts"])
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    monkeypatch.setenv("COLUMNS", "130")
    assert preflight.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["check", "found", "needed", "verdict", "to", "do"]
    assert max(map(len, said)) <= 130
    assert "simulated hosts" in said[-1]
    assert said[-1].startswith("Ready, with limits: ")


def test_a_room_is_collected(tmp_path, capsys):
    bad = preflight.row("packages: core", "missing: torch", "pins", preflight.NOT_READY, "make lab")
    for name, rows in (("ann", [preflight.row("cores", "4", "2")]), ("bob", [bad])):
        said = {"host": "box", "user": name, "ready": rows[0] is not bad, "checks": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    (tmp_path / "cid.json").write_text("{")
    files = sorted(str(path) for path in tmp_path.iterdir())
    assert preflight.collect(files) == 1
    said = capsys.readouterr().out
    assert "Not ready: packages: core" in said
    assert "can't be read" in said
    assert said.index("bob on box") < said.index("ann on box"), "who needs help comes first"
    assert preflight.collect(files[:1]) == 0
