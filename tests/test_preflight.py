"""The preflight: each shortage is real (a hidden package, a bound port, one core), and is named."""

import ast
import json
import os
import shlex
import socket
import subprocess
import sys
import types
from pathlib import Path

import preflight
import preflight_checks as checks
import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "preflight.py"

FILES = (TOOL, TOOL.with_name("preflight_checks.py"))
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
    code, rows = check("--only", "python,packages,cores,memory,gpus,ports,disk,extras")
    assert code == 0, [row for row in rows.values() if row["verdict"] == checks.NOT_READY]
    assert rows["Python"]["verdict"] == rows["packages: lab"]["verdict"] == checks.READY
    assert all(row["to do"] or row["verdict"] == checks.READY for row in rows.values())
    for name in ("simulated hosts", "C++ compiler", "Chromium", "pandoc", "device leases"):
        assert rows[name]["needed"], name


@pytest.mark.slow
def test_ranks_really_talk():
    """The launch in this process, without the time limit that a busy machine may not keep."""
    done = subprocess.run(
        [sys.executable, str(TOOL), "--measure"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, "its supervisor did, at its end, since Python 3.12"
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["backend"] in preflight.SLOWEST
    assert all(rate > 0 for rate in said["rates"].values())
    row = preflight._talk(**said)
    assert f"{said['ranks']} ranks, {said['backend']}: 64 KiB" in row["found"]
    crawl = {**said, "rates": {1 << 25: 1e6}}
    assert preflight._talk(**crawl)["verdict"] == checks.LIMITS


def test_a_launch_that_fails_or_hangs_is_no_success(monkeypatch):
    for code, words in (("raise SystemExit('no rank came')", "no rank came"), ("", "failed")):
        launch = preflight.Launch.__new__(preflight.Launch)
        launch.deadline = preflight.time.monotonic() + 60
        launch.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=-1, stderr=-1, text=True
        )
        (row,) = launch.rows()
        assert (row["verdict"], row["found"]) == (checks.NOT_READY, words)
    launch.process = subprocess.Popen(["sleep", "600"], stdout=-1, stderr=-1, text=True)
    launch.deadline = 0
    (row,) = launch.rows()
    assert row["found"].startswith("no result after")
    assert launch.process.poll() is not None, "it is still there"


def test_an_interrupt_leaves_no_process_and_no_folder(monkeypatch):
    begun = []

    class Launch(preflight.Launch):
        def __init__(self):
            super().__init__()
            begun.append(self)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(preflight, "Launch", Launch)
    monkeypatch.setitem(checks.CHECKS, "memory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preflight.run_checks(types.SimpleNamespace(only=["memory", "launch"]))
    (launch,) = begun
    assert launch.process.poll() is not None
    assert not Path(launch.folder).exists()


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
    assert row["verdict"] == (checks.LIMITS if ready else checks.NOT_READY)
    assert f"pip install {package}==" in row["to do"]
    if package == "torch":
        assert "not tried" in rows["ranks talk"]["found"]


def test_a_group_that_was_left_out_says_what_the_reader_loses(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "deepspeed,lightning")
    rows = {row["check"]: row for row in checks.packages(None)}
    row = rows["packages: deepspeed"]
    assert (row["found"], row["verdict"]) == ("missing: deepspeed", checks.LIMITS)
    assert row["to do"].startswith("Lessons 07 and 13b go on without DeepSpeed. ")
    assert "lightning" in rows["packages: frameworks"]["found"]
    monkeypatch.setattr(checks, "_applies", lambda line: "megatron" not in line)
    row = {row["check"]: row for row in checks.packages(None)}["packages: megatron"]
    assert row["found"] == "none for this Python or system"
    assert row["to do"] == "The appendix goes on without Megatron-core."


def test_a_package_is_for_this_python_as_its_marker_says():
    assert checks._applies("any>=1")
    assert checks._applies("some>=1; python_version >= '3.11'")
    assert not checks._applies("other; python_version < '3'")


def test_what_to_type_can_be_pasted_where_the_path_has_a_blank(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/zoë m/.venv/bin/python")
    monkeypatch.setattr(sys, "prefix", "/zoë m/.venv")
    typed = checks._how_to_install(["numpy"], {"numpy": "2.3"})
    given = ["-m", "pip", "install", "numpy==2.3"]
    assert shlex.split(typed) == ["/zoë m/.venv/bin/python", *given]


def test_another_version_than_the_pin_is_named(monkeypatch):
    pins = {**checks._pins(), "numpy": "1.0"}
    monkeypatch.setattr(checks, "_pins", lambda: pins)
    row = checks.packages(None)[0]
    assert row["found"].startswith("numpy 2.")
    assert (row["verdict"], "numpy==1.0" in row["to do"]) == (checks.LIMITS, True)


def test_before_anything_is_installed():
    """The system's Python without a package: the table comes, and says make lab."""
    code, rows = check("--only", "python,packages,imports,cores,ports,launch", python=BARE)
    assert code == 1
    assert rows["Python"]["verdict"] == checks.READY
    assert rows["packages: core"]["found"] == "missing: torch, numpy, filelock, psutil"
    assert rows["packages: core"]["to do"].startswith("make lab installs everything")
    assert rows["ranks talk"]["verdict"] == checks.NOT_READY
    assert "imports" not in rows


def test_an_old_python_is_told_so_and_nothing_else(monkeypatch):
    """No module of the course is loaded: it could not be read."""
    monkeypatch.setattr(checks.sys, "version_info", (3, 8, 18))
    monkeypatch.setattr(checks, "CHECKS", {})
    options = preflight.argparse.Namespace(only=["python", "cores", "launch"])
    (row,) = preflight.run_checks(options)
    assert row["verdict"] == checks.NOT_READY
    assert "make PYTHON=" in row["to do"]


def test_it_parses_on_an_old_python():
    for file in FILES:
        ast.parse(file.read_text(), feature_version=(3, 8))


def test_ports_that_are_taken_are_named():
    with (
        socket.create_server(("127.0.0.1", 0)) as holder,
        socket.create_server(("127.0.0.1", 0)) as lab,
    ):
        port, lab_port = holder.getsockname()[1], lab.getsockname()[1]
        given = ["--ports", str(port), "--lab-port", str(lab_port)]
        code, rows = check("--only", "ports", *given)
        assert code == 0, "launch takes a free port itself"
        row = rows[f"port {port}"]
        assert (row["found"], row["verdict"]) == ("taken", checks.LIMITS)
        assert f"sport = :{port}" in row["to do"]
        assert "torchrun --master-port" in row["to do"]
        assert rows[f"port {lab_port}"]["found"] == "taken"
        assert rows["loopback"]["found"] == "connects"
    assert checks._is_free(port)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--ports", "x"],
        ["--ports", "-1"],
        ["--ports", "1,"],
        ["--lab-port", "65536"],
        ["--only", ""],
    ],
)
def test_what_is_no_port_and_no_check_is_refused(wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["preflight.py", *wrong])
    monkeypatch.setattr(preflight, "run_checks", lambda _: pytest.fail("it looked"))
    with pytest.raises(SystemExit) as ended:
        preflight.main()
    assert ended.value.code == 2
    says = "has no '': choose of" if "--only" in wrong else "is no port: say a number from 1 to"
    assert says in capsys.readouterr().err


def test_one_core_is_a_limit():
    """The affinity of a child process, really set."""
    one = min(os.sched_getaffinity(0))
    code, rows = check("--only", "cores", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    row = rows["cores"]
    assert code == 0
    assert row["found"].startswith("1 of ")
    assert row["verdict"] == checks.LIMITS
    assert "docker --cpus" in row["to do"]


def test_logs_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    env = {"BOOTCAMP_LOGS": str(tmp_path / "file" / "logs")}
    code, rows = check("--only", "disk", env=env)
    assert code == 1
    assert "Not a directory" in rows["disk: logs"]["found"]
    assert "BOOTCAMP_LOGS" in rows["disk: logs"]["to do"]


def test_what_is_missing_for_single_lessons_stops_nothing():
    env = {"BOOTCAMP_WITHOUT": "hosts,horovod,chromium", "BOOTCAMP_LEASES": "off"}
    code, rows = check("--only", "extras", env=env)
    assert code == 0
    assert rows.pop("pandoc")["verdict"] == checks.READY
    assert {row["verdict"] for row in rows.values()} == {checks.LIMITS}
    assert "lesson 08 shows recorded runs" in rows["simulated hosts"]["to do"]
    assert "lesson 05 shows a recorded run" in rows["C++ compiler"]["to do"]
    assert "unset it" in rows["device leases"]["to do"]


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


def test_the_package_index_answers_as_pip_is_configured(pip_config, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example:3128")
    pip_config("simple")
    (row,) = checks.index(None)
    assert row["verdict"] == checks.READY
    assert row["found"].startswith("answers")
    assert "https proxy.example:3128" in row["found"]
    assert "secret" not in str(row), "a table is shown to others"


@pytest.mark.parametrize(("torch", "verdict"), [("2.13", checks.LIMITS), (None, checks.NOT_READY)])
def test_an_index_that_does_not_answer_matters_before_the_installation(
    pip_config, monkeypatch, torch, verdict
):
    pip_config("gone")
    monkeypatch.setattr(checks, "version", lambda package: torch)
    (row,) = checks.index(None)
    assert row["found"].startswith("does not answer")
    assert row["verdict"] == verdict
    assert "PIP_INDEX_URL" in row["to do"]


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_gpus_for_a_user_who_may_not_enter_a_folder_of_path(tmp_path):
    """subprocess meets PermissionError there, where another user gets FileNotFoundError."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = f"""
import os, subprocess, sys
sys.path[:0] = [{str(TOOL.parent)!r}, {str(ROOT / "src")!r}]
import preflight_checks as checks
from bootcamp import machine
os.environ["PATH"] = {str(closed)!r}
os.setgid({NOBODY})
os.setuid({NOBODY})
try:
    subprocess.run(["nvidia-smi"])
except PermissionError:
    print(checks.gpus(None)[0]["found"], machine.gpu_names(), sep="; ")
"""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # so that the closed folder is the only obstacle
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "none (no nvidia-smi); ()", done.stderr


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


def test_a_check_that_raises_hides_no_other(monkeypatch):
    monkeypatch.setitem(checks.CHECKS, "gpus", lambda options: 1 / 0)
    options = preflight.argparse.Namespace(only=["gpus", "cores"])
    rows = {row["check"]: row for row in preflight.run_checks(options)}
    assert "ZeroDivisionError" in rows["gpus"]["found"]
    assert "cores" in rows


def test_each_row_is_a_line_with_what_to_do_below_and_a_verdict_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["preflight.py", "--only", "python,extras"])
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    assert preflight.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split()[:2] == ["ok", "Python"]
    hosts = next(i for i, line in enumerate(said) if "simulated hosts" in line)
    assert said[hosts].startswith("limits ")
    assert said[hosts + 1].strip() == "Without them lesson 08 shows recorded runs."
    assert said[-1].startswith("Ready, with limits: simulated hosts")


def test_a_room_is_collected(tmp_path, capsys):
    """Two machines of one name are told apart by their files; nothing is missing without a user."""
    bad = checks.row("packages: core", "missing: torch", "pins", checks.NOT_READY, "make lab")
    good = checks.row("cores", "4", "2")
    for name, row in (("ann", good), ("bob", bad), ("eve", good)):
        said = {"host": "box", "user": "student", "ready": row is good, "checks": [row]}
        if name == "eve":
            del said["user"]
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    for name, text in (("cid", "{"), ("dan", "[1]"), ("fay", '{"user": "fay"}')):
        (tmp_path / f"{name}.json").write_text(text)
    files = sorted(str(path) for path in tmp_path.glob("*.json"))
    assert preflight.collect(files) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(files)
    line = {Path(each.split(".json")[0]).name: each for each in said}
    assert set(line) == {"ann", "bob", "cid", "dan", "eve", "fay"}
    assert "student on box" in line["ann"]
    assert "student on box" in line["bob"]
    assert "a user without a name on box" in line["eve"]
    assert line["bob"].endswith("Not ready: packages: core. What to do is said below each.")
    for name in ("cid", "dan", "fay"):
        assert "is not a result of make preflight JSON=1" in line[name]
    ready = [i for i, each in enumerate(said) if each.endswith("Ready.")]
    assert ready == [4, 5], "those who need help come first"
    assert preflight.collect([files[0]]) == 0
