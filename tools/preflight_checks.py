"""The checks of tools/preflight.py. Each takes its options and returns a list of rows.

Standard library only, and of the course's own modules only those that need nothing else. It parses
on Python 3.8 too, where `python` is the only check that runs.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "src", ROOT / "tools"):
    sys.path.insert(0, str(folder))

READY, LIMITS, TO_INSTALL, NOT_READY = "ok", "limits", "to install", "not ready"
LOWEST_PYTHON = (3, 11)
GROUPS = ("core", "kernel", "lab")  # of a reader; the others come when a lesson asks for them
INDEX_SECONDS = 5
# bytes of disk, rounded up: an environment with every group (gigabytes of it are CUDA's libraries),
# what Horovod is built with and from, Triton's environment, records and copies of `make course`
DISK = {"environment": 12e9, "Horovod": 0.3e9, "Triton": 0.4e9, "a full course": 1e9}
CPU_ENVIRONMENT = 2.2e9  # with a CPU build of torch, as TORCH_INDEX may name one
LONGEST_PATH = 107 - len("/pymp-12345678/listener-12345678")  # of a socket's, without a worker's
SHARED, LEAST_SHARED = Path("/dev/shm"), 256e6  # batches of workers, buffers of NCCL
INSTALL = "make lab installs it (the first time takes minutes)."


def row(check: str, found: str, needed: str, verdict: str = READY, to_do: str = "") -> dict:
    """One check's result. to_do: what would help, where the verdict is not READY."""
    told = {"check": check, "found": found, "needed": needed, "verdict": verdict}
    return {**told, "to do": to_do if verdict != READY else ""}


def python(_) -> list[dict]:
    here, fix = platform.python_version(), ""
    if sys.version_info < LOWEST_PYTHON:
        fix = "Install Python 3.11 or newer, then say make PYTHON=/path/to/it with every command."
    elif sys.prefix == sys.base_prefix and not importlib.util.find_spec("ensurepip"):
        here, fix = f"{here}, no ensurepip", "On Debian and Ubuntu: apt install python3-venv."
    return [row("Python", here, "3.11 or newer, with venv", NOT_READY if fix else READY, fix)]


def cores(_) -> list[dict]:
    """Cores that ranks may use: affinity, hardware threads and the container's quota considered."""
    from bootcamp import machine

    found, quota = len(machine.cores()), machine.cpu_quota()
    text = f"{found} of {os.cpu_count()} logical CPUs"
    text += f", quota {quota:g}" if quota < float("inf") else ""
    fix = "Everything runs, but speed-ups can't be measured: ranks share the core. Give the "
    fix += "container or virtual machine more CPUs (docker --cpus 4), or widen taskset."
    return [row("cores", text, "2, better 4", LIMITS if found < 2 else READY, fix)]


def memory(_) -> list[dict]:
    total = limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or it says "max"
            limit = min(limit, int(Path(path).read_text()))
    text = f"{limit / 1e9:.1f} GB"
    text += f" for this container, of {total / 1e9:.1f} GB" if limit < total else ""
    verdict = READY if limit > 3.7e9 else LIMITS if limit > 1.9e9 else NOT_READY
    fix = "Close other programs, or give the container or virtual machine more."
    return [row("memory", text, "4 GB", verdict, fix)]


def gpus(_) -> list[dict]:
    """As nvidia-smi lists them; whether torch can use them is seen by the launch."""
    label, needed = "GPUs", "none: without one, a rank is a CPU core"
    program = shutil.which("nvidia-smi")
    if program is None:
        hidden = glob.glob("/dev/nvidia[0-9]*")
        found = "there are some, but no nvidia-smi in PATH" if hidden else "none (no nvidia-smi)"
        fix = "Ask an administrator where nvidia-smi is, and add its folder to PATH."
        return [row(label, found, needed, LIMITS if hidden else READY, fix)]
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10)
        failed, said = answer.returncode, (answer.stdout or answer.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        failed, said = True, ["nvidia-smi hangs"]
    if not failed:
        return [row(label, "; ".join(said) or "none", needed)]
    fix = "Repair the driver (nvidia-smi shows it, and should end at once), or use CPU ranks."
    return [row(label, said[-1] if said else "no answer", "a driver that works", LIMITS, fix)]


def packages(_) -> list[dict]:
    """Compare the installed versions with the pins of constraints.txt."""
    import install  # tools/install.py: an old Python can't read it

    pins, found, needed = install.pins(), [], "pins of constraints.txt"
    here = versions()
    for group, names in wanted().items():
        missing = [name for name in names if name not in here]
        other = {n: here[n] for n in names if n in here and pins.get(n, here[n]) != here[n]}
        text, verdict, fix = f"{len(names)} as pinned", READY, _how_to_install(group)
        if group not in GROUPS and missing == names:
            text = "none yet: a lesson asks" if names else "none for this Python or system"
        elif missing:
            text = f"missing: {', '.join(missing)}"
            verdict = LIMITS if group not in GROUPS else NOT_READY if is_made() else TO_INSTALL
        elif other:
            text, verdict = ", ".join(map(" ".join, other.items())), LIMITS
            fix = f"Not tested with these. {fix}"
        found.append(row(f"packages: {group}", text, needed, verdict, fix))
    return found


def is_made() -> bool:
    """Whether this Python is that of an environment in which the installation has ended."""
    return Path(sys.prefix, ".ready").exists()


def versions() -> dict[str, str]:
    """List {package: version} of this environment, less what BOOTCAMP_WITHOUT hides."""
    import install  # tools/install.py

    from bootcamp.machine import is_hidden

    return {name: it for name, it in install.versions_here().items() if not is_hidden(name)}


def has_core() -> bool:
    """Whether what every run needs is installed."""
    return versions().keys() >= set(wanted()["core"])


def _how_to_install(group: str) -> str:
    """Say what to type, also in an environment that make takes for complete."""
    groups = [] if group in GROUPS else [group]
    again = shlex.join([sys.executable, "tools/install.py", *groups])
    return again if is_made() else INSTALL


def wanted() -> dict[str, list[str]]:
    """List {group: packages} for this system, the core among them."""
    import install  # tools/install.py

    lines = {"core": install.project()["project"]["dependencies"], **install.groups()}
    return {
        group: [install.plain(line) for line in lines[group] if _applies(line)]
        for group in lines
        if group not in install.LATER
    }


def _applies(line: str) -> bool:
    """Whether a package is for this Python and system; an environment has what can tell."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return True
    marker = Requirement(line).marker
    return marker is None or marker.evaluate()


def index(_) -> list[dict]:
    """Whether pip's package index answers as this user has configured it, proxies included."""
    label, needed = "package index", "to install or update, not to run"
    names = {name: urllib.parse.urlsplit(at) for name, at in urllib.request.getproxies().items()}
    by = [f"{name} {at.hostname}:{at.port}" for name, at in names.items() if at.hostname]
    through = f" (proxies: {', '.join(by)})" if by else ""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0"]
    pip += ["--timeout", str(INDEX_SECONDS), "index", "versions", "filelock"]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=2 * INDEX_SECONDS)
    except subprocess.TimeoutExpired:
        done = None
    if done is not None and "No module named pip" in done.stderr:
        return [row(label, "not asked: this Python has no pip yet", needed)]
    if done is not None and done.returncode == 0:
        return [row(label, f"answers{through}", needed)]
    verdict = LIMITS if is_made() else NOT_READY
    fix = "Behind a proxy, set https_proxy; with a mirror, PIP_INDEX_URL. Without a network, bring "
    fix += "the packages: see slides/kit/room.md."
    return [row(label, f"does not answer{through}", needed, verdict, fix)]


def disk(_) -> list[dict]:
    """Room for what is still to be installed and for records, which can be written."""
    from bootcamp.paths import LOGS as logs

    needs = dict(DISK)
    if "cpu" in os.environ.get("TORCH_INDEX", ""):
        needs["environment"] = CPU_ENVIRONMENT
    if is_made():
        del needs["environment"]
    need, free = sum(needs.values()), shutil.disk_usage(ROOT).free
    least = needs.get("environment", 2e9)
    needed = f"{need / 1e9:.1f} GB for all: "
    needed += ", ".join(f"{what} {size / 1e9:.1f}" for what, size in needs.items())
    verdict = READY if free > need else LIMITS if free > least else NOT_READY
    fix = "Free some space, or put the project on another disk."
    found = [row("disk: free", f"{free / 1e9:.0f} GB", needed, verdict, fix)]
    found.append(row("disk: logs", "can be written", "can be written"))
    try:
        logs.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=str(logs)).close()
    except OSError as error:
        fix = f"Let this user write to {logs.name}/, or name a folder in BOOTCAMP_LOGS."
        found[-1] = row("disk: logs", str(error), "can be written", NOT_READY, fix)
    return found


def temporary(_) -> list[dict]:
    """What processes meet in: sockets among the temporary files, and memory that they share."""
    label, needed = "temporary files", f"written, on a path of {LONGEST_PATH} bytes at most"
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        fix = "Set TMPDIR to a folder that you may write to."
        return [row(label, "no folder for them can be written", needed, NOT_READY, fix)]
    size = len(os.fsencode(folder))
    fix = "A DataLoader with workers waits for ever: set TMPDIR to a folder with a shorter path."
    verdict = READY if size <= LONGEST_PATH else LIMITS
    found = [row(label, f"in {folder}, {size} bytes", needed, verdict, fix)]
    if not SHARED.is_dir():  # macOS
        return found
    label, needed = "shared memory", f"{LEAST_SHARED / 1e6:.0f} MB in {SHARED}"
    if not os.access(SHARED, os.W_OK, effective_ids=True):
        fix = f"Workers of a DataLoader can't start: let an administrator chmod 1777 {SHARED}."
        return [*found, row(label, "can't be written", needed, LIMITS, fix)]
    free = shutil.disk_usage(SHARED).free
    fix = "Workers of a DataLoader and NCCL may fail: docker run --shm-size 2g, or free some of it."
    verdict = READY if free >= LEAST_SHARED else LIMITS
    return [*found, row(label, f"{free / 1e6:.0f} MB free", needed, verdict, fix)]


def extras(_) -> list[dict]:
    """What single lessons, slides and shared machines need: nothing of it stops the course."""
    import horovod as build  # tools/horovod.py

    from bootcamp.machine import is_hidden

    built = versions().get("horovod") or "not built yet: make horovod does it, once (minutes)"
    no_compiler = "Horovod is hidden." if is_hidden("horovod") else build.obstacle()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    given = [  # what it is, what is in the way, what else is found, what needs it, what to do
        ("C++ compiler", no_compiler, f"found, Horovod {built}", "lesson 05, to build Horovod")
        + ("Without it lesson 05 shows a recorded run.",),
        ("Chromium", None if chromium and not is_hidden("chromium") else "none", "found")
        + ("to test pages and print slides", "For instructors: on Debian, apt install chromium."),
    ]
    if has_core():
        from bootcamp.launcher import device_locks, simulated_hosts

        locks = device_locks.choose_folder()
        no_locks = "off" if locks is None else device_locks.why_not(locks)
        given += [
            ("simulated hosts", simulated_hosts.why_not(), "two were made", "lesson 08, to measure")
            + ("Without them lesson 08 shows recorded runs.",),
            ("device leases", no_locks, f"in {locks}", "for several people on one machine")
            + ("Set BOOTCAMP_LEASES to a folder that all of them can write to, or unset it.",),
        ]
    return [
        row(label, why or found, needed, LIMITS if why else READY, fix)
        for label, why, found, needed, fix in given
    ]


ALL = (python, packages, index, cores, memory, gpus, disk, temporary, extras)
CHECKS = {check.__name__: check for check in ALL}
