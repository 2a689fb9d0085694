"""Wait for other processes, start kernels beside this one, and find what is left of them."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path

import filelock
import pytest

import bootcamp
from bootcamp.files import read_json
from bootcamp.launcher import connection, process_tree
from bootcamp.launcher.simulated_hosts import KINDS
from bootcamp.records.rank_errors import HOSTS_FILE
from bootcamp.records.steps import read_steps

SECONDS = 60  # for what is awaited: not measured, only bounded


def run_program(command: list, **how) -> subprocess.CompletedProcess:
    """Run a program to its end, and keep what it says as text."""
    return subprocess.run(command, capture_output=True, text=True, **how)


def until(condition: Callable, seconds: float = SECONDS, what: str = "what was awaited"):
    """Wait until `condition()` is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} is not there after {seconds} s"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def meanwhile(condition: Callable, then: Callable):
    """In here another thread waits for the condition, then calls `then`; its errors are raised."""
    with futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: (until(condition), then()))
        yield
        done.result()


def trains(folder: Path, steps: int = 3) -> bool:
    """Whether a run has done so many steps."""
    return len(read_steps(folder)) >= steps


def leftovers(kernel: int, allow_launcher: bool = False) -> dict[int, str]:
    """Living processes that a kernel's launches have started: process id -> command."""
    allowed = set()
    if allow_launcher and (current := connection._connection):
        allowed = {current.process.pid, *fork_servers(current.process.pid)}
    found = process_tree.find_marked("BOOTCAMP_KERNEL", str(kernel)) - {kernel, *allowed}
    return {pid: process_tree.read_command(pid) for pid in found}


def fork_servers(supervisor: int) -> list[int]:
    """The fork server: the supervisor's only child whose command says so and is in its session."""
    session = process_tree.read_session(supervisor)
    return [
        pid
        for pid in process_tree.find_below({supervisor})
        if process_tree.read_session(pid) == session
        and "forkserver.py" in process_tree.read_command(pid)
    ]


def until_gone(kernel: int, seconds: float = 15) -> None:
    """Wait until nothing that a dead kernel has started is left."""
    until(lambda: not leftovers(kernel), seconds, f"the end of {leftovers(kernel)}")


def find_namespaces(kinds: Iterable[str] = KINDS) -> set[str]:
    """The namespaces of these kinds, a simulated host's, that any process is in or holds open."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        links = [f"/proc/{pid}/ns/{kind}" for kind in kinds]
        with contextlib.suppress(OSError):
            links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
        for link in links:
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                found.add(os.readlink(link))
    return {name for name in found if name.partition(":")[0] in kinds}


def find_host_traces() -> dict[str, list[str]]:
    """What simulated hosts leave if they leave anything: to compare before with after."""
    return {
        "namespaces": sorted(find_namespaces()),
        "interfaces": sorted(os.listdir("/sys/class/net")),  # of this process's network
        "mounts": Path("/proc/self/mounts").read_text().splitlines(),
    }


def namespaces_of(hosts: Iterable[dict]) -> set[str]:
    """The namespaces of simulated hosts, as simulated_hosts.make returns them."""
    return {namespace for host in hosts for namespace in host["namespaces"].values()}


def until_no_process_in(namespaces: set[str], seconds: float = 10) -> None:
    """Wait until nobody is in any of these; another test's hosts may get their numbers later."""
    kinds = {namespace.partition(":")[0] for namespace in namespaces}
    until(lambda: not namespaces & find_namespaces(kinds), seconds, f"the end of {namespaces}")


def until_hosts_are_gone(folder: Path) -> None:
    """Wait until nothing is left of the simulated hosts of the run in this folder."""
    until_no_process_in(namespaces_of(read_json(folder / HOSTS_FILE).get("hosts", ())))


NO_NOBODY = "to become somebody else one must be root" if os.getuid() else ""
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")
needs_nobody = pytest.mark.skipif(
    bool(NO_NOBODY) or SYSTEM_PYTHON is None, reason=NO_NOBODY or "no python3 for everybody here"
)


def run_as_nobody(code: str, *arguments: str) -> str:
    """Run code as a user without rights, with the system's Python; return what it prints.

    The first argument that it sees is a folder, of its own, with nothing but what it can read: the
    course's package and filelock.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # whoever it is, it may look in there
        for package in (bootcamp, filelock):
            source = Path(package.__file__).parent
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, f"{folder}/{source.name}", ignore=ignored)
        for path in (Path(folder), Path(folder, "logs")):
            path.mkdir(exist_ok=True)
            os.chown(path, 65534, 65534)
        done = run_program(
            [SYSTEM_PYTHON, "-c", code, folder, *arguments],
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            env={**os.environ, "TMPDIR": folder, "BOOTCAMP_LOGS": f"{folder}/logs"},
            timeout=SECONDS,
        )
    if "user namespaces (for everybody)" in done.stderr + done.stdout:
        pytest.skip("this system gives user namespaces to root only")
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def other_kernel(code: str, *arguments: str, **how):
    """A Python beside this one that runs this code; in the end it and all it started are gone."""
    command = [sys.executable, "-c", code, *arguments]
    how = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True, **how}
    with subprocess.Popen(command, **how) as kernel:
        try:
            yield kernel
        finally:
            kernel.kill()
    until_gone(kernel.pid, SECONDS)


class Notebook:
    """A real Jupyter kernel, started by `with`; in the end it and all it started are gone."""

    def __enter__(self) -> "Notebook":
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.pid, self.interrupt = self.manager.provisioner.pid, self.manager.interrupt_kernel
        return self

    def __exit__(self, *_) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        until_gone(self.pid)

    def run(self, code: str) -> tuple[dict, str]:
        """Run a cell: (its reply, what it printed)."""
        printed = []

        def hear(message):
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=120, output_hook=hear)
        return reply["content"], "".join(printed)
