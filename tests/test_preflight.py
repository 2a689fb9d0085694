"""The preflight: each shortage is real (a hidden package, a bound port, one core), and is named."""

import ast
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import types
from pathlib import Path

import preflight
import preflight_checks as checks
import psutil
import pytest

from bootcamp import machine

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "preflight.py"

BARE = [sys._base_executable, "-I", "-S"]  # the system's own Python: no package at all
UNSHARE = ["unshare", "--mount", "sh", "-c"]
SMALL = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" "$@"'


def check(*arguments, python=(sys.executable,), env=(), **options):
    """Run the tool: (exit code, what it prints, its rows by the check's name)."""
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
    return done.returncode, said, {row["check"]: row for row in said["checks"]}


def rows_of(check):
    return {row["check"]: row for row in check(None)}


def test_this_machine_is_ready_for_the_lessons():
    """All but the launch, which takes long where much else is running."""
    code, said, rows = check("--only", "python,packages,cores,memory,gpus,loopback,disk,extras")
    assert code == 0, [row for row in rows.values() if row["verdict"] == checks.NOT_READY]
    assert said["host"] == socket.gethostname()
    assert rows["Python"]["verdict"] == rows["packages: lab"]["verdict"] == checks.READY
    assert all(row["to do"] or row["verdict"] == checks.READY for row in rows.values())
    for name in ("simulated hosts", "C++ compiler", "Chromium", "device leases"):
        assert rows[name]["needed"], name


def test_before_the_installation_a_machine_can_be_installed(tmp_path):
    """The system's Python without a package: exit code 0, and how much disk each part takes."""
    code, said, rows = check("--only", "python,packages,cores,loopback,disk,launch", python=BARE)
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
    ("package", "group", "ready"),
    [("torch", "core", False), ("jupyterlab", "lab", False), ("jupytext", "test", True)],
)
def test_missing_package_is_named_with_its_pin(package, group, ready):
    """In an environment in which the installation has ended, it would not mend it."""
    only = "packages,launch" if package == "torch" else "packages"
    code, _, rows = check("--only", only, env={"BOOTCAMP_WITHOUT": package})
    row = rows[f"packages: {group}"]
    assert (code == 0) is ready
    assert package in row["found"].removeprefix("missing: ").split(", ")
    assert row["verdict"] == (checks.LIMITS if ready else checks.NOT_READY)
    assert f" {package}==" in row["to do"]
    if package == "torch":
        assert "not tried" in rows["ranks talk"]["found"]


def test_packages_that_are_not_for_this_python_or_not_as_pinned(monkeypatch):
    import install

    assert checks._applies("some>=1; python_version >= '3.11'")
    assert not checks._applies("other; python_version < '3'")
    monkeypatch.setattr(checks, "_applies", lambda line: "megatron" not in line)
    pins = {**install.pins(), "numpy": "1.0"}
    monkeypatch.setattr(install, "pins", lambda: pins)
    rows = rows_of(checks.packages)
    assert rows["packages: megatron"]["found"] == "none for this Python or system"
    assert rows["packages: core"]["found"].startswith("numpy 2.")
    assert "numpy==1.0" in rows["packages: core"]["to do"]


def test_command_to_install_can_be_pasted_where_the_path_has_a_blank(monkeypatch):
    monkeypatch.setattr(checks, "is_made", lambda: True)
    monkeypatch.setattr(sys, "executable", "/zoë m/.venv/bin/python")
    typed = checks._how_to_install(["numpy"], {"numpy": "2.3"})
    given = ["-m", "pip", "install", "numpy==2.3"]
    assert shlex.split(typed) == ["/zoë m/.venv/bin/python", *given]


def test_old_python_is_told_so_and_nothing_else(monkeypatch):
    """No module of the course is loaded: it could not be read."""
    for file in (TOOL, TOOL.with_name("preflight_checks.py")):
        ast.parse(file.read_text(), feature_version=(3, 8))
    monkeypatch.setattr(checks.sys, "version_info", (3, 8, 18))
    monkeypatch.setattr(checks, "CHECKS", {})
    (row,) = preflight.run_checks(types.SimpleNamespace(only=["python", "cores", "launch"]))
    assert row["verdict"] == checks.NOT_READY
    assert "make PYTHON=" in row["to do"]


@pytest.mark.slow
def test_ranks_really_talk():
    """The launch in this process, without the time limit that a busy machine may not keep."""
    done = subprocess.run(
        [sys.executable, str(TOOL), "--measure"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, "its supervisor did, at its end, since Python 3.12"
    said = json.loads(done.stdout.splitlines()[-1])
    assert all(rate > 0 for rate in said["rates"].values())
    row = preflight.judge(**said)
    assert f"{said['ranks']} ranks, {said['backend']}: 64 KiB" in row["found"]
    assert row["needed"].endswith("MB/s with 32 MiB"), "the size that is judged"
    crawl = {**said, "rates": {1 << 25: 1e6}}
    assert preflight.judge(**crawl)["verdict"] == checks.LIMITS


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
    left = [each for each in psutil.Process().children() if "measures.py" in str(each.cmdline())]
    assert (left, sorted(path.name for path in tmp_path.iterdir())) == (
        [],
        ["began", "measures.py"],
    )


def test_machine_that_does_not_connect_to_itself_is_not_ready(monkeypatch):
    assert rows_of(checks.loopback)["loopback"]["verdict"] == checks.READY

    def refused(*_, **__):
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(checks.socket, "create_connection", refused)
    assert rows_of(checks.loopback)["loopback"]["verdict"] == checks.NOT_READY


def test_one_core_is_a_limit_and_logs_that_can_not_be_written_are_named(tmp_path):
    """The affinity of a child process, really set."""
    (tmp_path / "file").write_text("")
    one = min(os.sched_getaffinity(0))
    code, _, rows = check(
        *("--only", "cores,disk"),
        env={"BOOTCAMP_LOGS": str(tmp_path / "file" / "logs")},
        preexec_fn=lambda: os.sched_setaffinity(0, {one}),
    )
    assert code == 1
    assert rows["cores"]["found"].startswith("1 of ")
    assert rows["cores"]["verdict"] == checks.LIMITS
    assert "Not a directory" in rows["disk: logs"]["found"]
    assert "BOOTCAMP_LOGS" in rows["disk: logs"]["to do"]


def test_disk_without_room_for_the_environment_is_not_ready(monkeypatch):
    monkeypatch.setattr(checks, "is_made", lambda: False)
    for free, verdict in ((1e9, checks.NOT_READY), (12.5e9, checks.LIMITS), (1e12, checks.READY)):
        monkeypatch.setattr(
            checks.shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free)
        )
        assert rows_of(checks.disk)["disk: free"]["verdict"] == verdict


def test_temporary_folder_that_will_not_do(monkeypatch):
    def none():
        raise FileNotFoundError

    for folder, verdict in (("/tmp", "ok"), (f"/tmp/{'x' * checks.LONGEST_PATH}", "limits")):
        monkeypatch.setattr(checks.tempfile, "tempdir", folder)
        assert rows_of(checks.temporary)["temporary files"]["verdict"] == verdict
    monkeypatch.setattr(checks.tempfile, "gettempdir", none)
    assert rows_of(checks.temporary)["temporary files"]["verdict"] == checks.NOT_READY


@pytest.mark.skipif(
    os.geteuid() != 0
    or not shutil.which("unshare")
    or subprocess.run([*UNSHARE, SMALL, "true"], capture_output=True).returncode != 0,
    reason="this process can't mount",
)
def test_small_shared_memory_is_a_limit():
    _, _, rows = check("--only", "temporary", python=[*UNSHARE, SMALL, sys.executable])
    assert (rows["shared memory"]["found"], rows["shared memory"]["verdict"]) == (
        "1 MB free",
        checks.LIMITS,
    )


def test_what_is_missing_for_single_lessons_stops_nothing():
    env = {"BOOTCAMP_WITHOUT": "hosts,horovod,chromium", "BOOTCAMP_LEASES": "off"}
    code, _, rows = check("--only", "extras", env=env)
    assert code == 0
    assert {row["verdict"] for row in rows.values()} == {checks.LIMITS}


@pytest.fixture
def pip_config(tmp_path, monkeypatch):
    """Has pip ask an index that is a folder, so that no network is needed."""
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "simple" / "filelock"
    folder.mkdir(parents=True)
    page = '<a href="filelock-9.9-py3-none-any.whl">filelock-9.9-py3-none-any.whl</a>'
    (folder / "index.html").write_text(page)

    def configure(index):
        text = f"[global]\nindex-url = file://{tmp_path}/{index}\nextra-index-url =\nfind-links =\n"
        (tmp_path / "pip.conf").write_text(text)

    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    return configure


def test_package_index_answers_as_pip_is_configured(pip_config, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example:3128")
    pip_config("simple")
    (row,) = checks.index(None)
    assert row["verdict"] == checks.READY
    assert "https proxy.example:3128" in row["found"]
    assert "secret" not in str(row), "a table is shown to others"


def test_index_that_does_not_answer_matters_before_the_installation(pip_config, monkeypatch):
    pip_config("gone")
    for made, verdict in ((True, checks.LIMITS), (False, checks.NOT_READY)):
        monkeypatch.setattr(checks, "is_made", lambda made=made: made)
        (row,) = checks.index(None)
        assert row["verdict"] == verdict
        assert "PIP_INDEX_URL" in row["to do"]


def test_gpus_are_listed_by_the_nvidia_smi_of_path(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for lines, found in (("A100, 81920 MiB", "A100, 81920 MiB"), ("A\nB", "A; B"), ("", "none")):
        fake.write_text(f"#!/bin/sh\nprintf '{lines}\n'\n")
        fake.chmod(0o755)
        assert checks.gpus(None)[0]["found"] == found
    fake.write_text("#!/bin/sh\necho no driver; exit 9\n")
    (row,) = checks.gpus(None)
    assert (row["found"], row["verdict"]) == ("no driver", checks.LIMITS)


def test_gpus_of_a_user_who_may_not_enter_a_folder_of_path(monkeypatch):
    """subprocess meets PermissionError there, where it would be FileNotFoundError elsewhere."""

    def closed(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.subprocess, "run", closed)
    monkeypatch.setattr(checks.shutil, "which", lambda _: None)
    assert machine.all_gpus.__wrapped__() == ()
    assert checks.gpus(None)[0]["found"].startswith("none")


def test_check_that_raises_hides_no_other(monkeypatch):
    monkeypatch.setitem(checks.CHECKS, "gpus", lambda options: 1 / 0)
    rows = preflight.run_checks(types.SimpleNamespace(only=["gpus", "cores"]))
    rows = {row["check"]: row for row in rows}
    assert "ZeroDivisionError" in rows["gpus"]["found"]
    assert "cores" in rows


def test_table_has_what_to_do_below_a_row_and_a_verdict_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["preflight.py", "--only", "python,extras"])
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    assert preflight.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split()[:2] == ["ok", "Python"]
    hosts = next(i for i, line in enumerate(said) if "simulated hosts" in line)
    assert said[hosts].startswith("limits ")
    assert said[hosts + 1].startswith(" ")
    assert said[-1].startswith("Ready, with limits: simulated hosts")
    monkeypatch.setattr(sys, "argv", ["preflight.py", "--only", ""])
    with pytest.raises(SystemExit) as ended:
        preflight.main()
    assert ended.value.code == 2


def test_class_is_collected_by_who_needs_help(tmp_path, capsys):
    """Two machines of one name are told apart by their files; nothing is missing without a user."""
    good = checks.row("cores", "4", "2")
    bad = checks.row("disk: free", "1 GB", "4 GB", checks.NOT_READY, "Free some space")
    new = checks.row("packages: core", "missing: torch", "pins", checks.TO_INSTALL, "make lab")
    for name, row in (("ann", good), ("bob", bad), ("eve", good), ("cleo", new)):
        said = {"host": "box", "user": "student", "checks": [row]}
        if name == "eve":
            del said["user"]
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    for name, text in (("cid", "{"), ("dan", "[1]"), ("fay", '{"user": "fay"}')):
        (tmp_path / f"{name}.json").write_text(text)
    files = sorted(str(path) for path in tmp_path.glob("*.json"))
    assert preflight.collect(files) == 1
    said = capsys.readouterr().out.splitlines()
    order = [Path(each.split(".json")[0]).name for each in said]
    assert order == ["bob", "cid", "dan", "fay", "cleo", "ann", "eve"]
    line = dict(zip(order, said, strict=True))
    assert "student on box" in line["ann"]
    assert "a user without a name on box" in line["eve"]
    assert "Not ready: disk: free." in line["bob"]
    assert "Can be installed: make lab." in line["cleo"]
    for name in ("cid", "dan", "fay"):
        assert "is not a result of make preflight JSON=1" in line[name]
    assert preflight.collect([files[0], files[3]]) == 0
