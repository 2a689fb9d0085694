"""python3 tools/preflight.py [--only NAME,NAME] [--json]

Is this machine ready for the course? A table: what was found, what is needed, what to do. Exit code
0 if it is ready, 1 if it is not.

It works before anything is installed, with the standard library of any Python 3.8 or newer, and
says then what is missing. With the course's own Python it also starts ranks and measures how fast
they talk. `--json` prints the same for a program; `--collect FILE ...` reads such files, one for
each attendee, and prints a row for each.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "src", ROOT / "tools"):
    sys.path.insert(0, str(folder))

READY, LIMITS, NOT_READY = "ok", "limits", "not ready"
LOWEST_PYTHON = (3, 11)
GROUPS = {"lab": NOT_READY, "test": LIMITS, "frameworks": LIMITS}  # of pyproject.toml
GROUPS_ON_LINUX = {"deepspeed": LIMITS, "megatron": LIMITS}
SHOWN_BYTES = (1 << 16, 1 << 20, 1 << 25)  # of the all-reduce
SLOWEST = {"gloo": 50e6, "nccl": 1e9}  # bytes per second of the largest; less is a fault
IMPORT_SECONDS, MEASURE_SECONDS = 14, 26
INSTALL = "make lab installs everything (the first time takes minutes)."


def row(check: str, found: str, needed: str, verdict: str = READY, to_do: str = "") -> dict:
    """One check's result. to_do: what would mend it, empty where nothing has to be."""
    return {"check": check, "found": found, "needed": needed, "verdict": verdict, "to do": to_do}


def modern() -> bool:
    """Whether this Python can read the course's own modules."""
    return sys.version_info >= LOWEST_PYTHON


def hidden(package: str) -> bool:
    """As bootcamp.machine.hidden, which an old Python can't read."""
    return package in os.environ.get("BOOTCAMP_WITHOUT", "").split(",")


# The checks. Each takes the options and returns a row or a list of them.


def python(_) -> list[dict]:
    version, needed = platform.python_version(), "3.11 or newer, with venv"
    if not modern():
        fix = "Install Python 3.11 or newer, then say make PYTHON=/path/to/it with every command."
        return [row("Python", version, needed, NOT_READY, fix)]
    missing = [name for name in ("venv", "ensurepip") if not importlib.util.find_spec(name)]
    if missing and sys.prefix == sys.base_prefix:
        fix = "On Debian and Ubuntu: apt install python3-venv."
        return [row("Python", f"{version}, no {missing[0]}", needed, NOT_READY, fix)]
    return [row("Python", version, needed)]


def cores(_) -> list[dict]:
    """Cores that ranks may use: affinity, hardware threads and the container's quota considered."""
    found = _cores()
    text = f"{found} of {os.cpu_count()} logical CPUs"
    if modern():
        from bootcamp import machine

        if machine.cpu_quota() < float("inf"):
            text += f", quota {machine.cpu_quota():g}"
    if found < 2:
        fix = "Everything runs, but speed-ups can't be measured: ranks share the core. Give the "
        fix += "container or virtual machine more CPUs (docker --cpus 4), or widen taskset."
        return [row("cores", text, "2, better 4", LIMITS, fix)]
    return [row("cores", text, "2, better 4")]


def _cores() -> int:
    if modern():
        from bootcamp import machine

        return len(machine.cores())
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def memory(_) -> list[dict]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = min([total, *_memory_limits()])
    text = f"{limit / 1e9:.1f} GB"
    if limit < total:
        text += f" for this container, of {total / 1e9:.1f} GB"
    needed, fix = "4 GB", "Close other programs, or give the container or virtual machine more."
    verdict = READY if limit > 3.7e9 else LIMITS if limit > 1.9e9 else NOT_READY
    return [row("memory", text, needed, verdict, fix if verdict != READY else "")]


def _memory_limits() -> list[int]:
    """Bytes that the control group grants, of cgroup v2 and v1, where one is set."""
    found = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or it says "max"
            found.append(int(Path(path).read_text()))
    return found


def gpus(_) -> list[dict]:
    """As nvidia-smi tells; whether torch can use them is seen by the launch."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return [row("GPUs", "none (no nvidia-smi)", "none: a rank is a CPU core then")]
    except subprocess.TimeoutExpired:
        fix = "Ask an administrator: the driver does not answer. nvidia-smi should end at once."
        return [row("GPUs", "nvidia-smi hangs", "a driver that answers", LIMITS, fix)]
    if answer.returncode:
        fix = "Mend the driver (run nvidia-smi to see it), or go on with CPU ranks."
        said = (answer.stdout or answer.stderr).strip().splitlines()
        return [row("GPUs", said[-1] if said else "no answer", "a driver that works", LIMITS, fix)]
    names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return [row("GPUs", "; ".join(names) or "none", "none: a rank is a CPU core then")]


def packages(_) -> list[dict]:
    """The versions that are installed against the pins of constraints.txt."""
    if not modern():
        return [row("packages", "not looked at", "a newer Python", NOT_READY, INSTALL)]
    pins, found = _pins(), []
    for group, names in _wanted().items():
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        other = {n: v for n, v in versions.items() if v and pins.get(n, v) != v}
        verdict = {"core": NOT_READY, **GROUPS, **GROUPS_ON_LINUX}[group]
        label, needed = f"packages: {group}", "pins of constraints.txt"
        if missing:
            text = f"missing: {', '.join(missing)}"
            found.append(row(label, text, needed, verdict, _how_to_install(missing, pins)))
        elif other:
            text = ", ".join(f"{name} {version}" for name, version in other.items())
            fix = _how_to_install(list(other), pins)
            found.append(row(label, text, needed, LIMITS, f"Not tested so. {fix}"))
        else:
            found.append(row(label, f"{len(names)} as pinned", needed))
    return found


def _version(package: str) -> str | None:
    """The installed version without a build's suffix such as +cpu; None if it is not there."""
    if hidden(package):
        return None
    try:
        return importlib.metadata.version(package).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def _how_to_install(names: list[str], pins: dict[str, str]) -> str:
    """What to type. In an environment that lacks a few packages, only these."""
    if sys.prefix == sys.base_prefix and "CONDA_PREFIX" not in os.environ:
        return INSTALL
    python = Path(sys.executable)
    shown = python.relative_to(ROOT) if ROOT in python.parents else python
    exact = " ".join(f"{name}=={pins[name]}" if name in pins else name for name in names)
    return f"{shown} -m pip install {exact}"


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("#")[0].strip().split("==") for line in lines]
    return {_plain(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _wanted() -> dict[str, list[str]]:
    """{group: packages} that `make lab` installs on this system, the core among them."""
    import re
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {**GROUPS, **(GROUPS_ON_LINUX if sys.platform == "linux" else {})}
    lines = {name: project["optional-dependencies"][name] for name in groups}
    lines = {"core": project["dependencies"], **lines}
    return {
        group: [_plain(re.match(r"[\w.-]+", line)[0]) for line in given]
        for group, given in lines.items()
    }


def imports(_) -> list[dict]:
    """Whether what a notebook needs can really be loaded; torch is loaded by the launch."""
    label, needed = "imports", "the core and JupyterLab load"
    if not modern() or any(_version(name) is None for name in _names("core", "lab")):
        return []
    code = "import " + ", ".join(name for name in _names("core", "lab") if name != "torch")
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        fix = "The machine or its disk is busy: look again later, with top."
        return [row(label, f"not loaded after {IMPORT_SECONDS} s", needed, LIMITS, fix)]
    if done.returncode:
        said = done.stderr.strip().splitlines()
        fix = "Install anew: make clean, then make lab."
        return [row(label, said[-1] if said else "failed", needed, NOT_READY, fix)]
    return [row(label, "loaded", needed)]


def _names(*groups: str) -> list[str]:
    wanted = _wanted()
    return [name for group in groups for name in wanted[group]]


def ports(options) -> list[dict]:
    """Loopback, the rendezvous of launchers that are started by hand, JupyterLab's own port."""
    found = [_loopback()]
    first, last = options.ports
    taken = [port for port in range(first, last + 1) if not _is_free(port)]
    text, needed = f"{first} to {last} are free", "free, for torchrun by hand"
    verdict, fix = READY, ""
    if taken:
        shown = ", ".join(map(str, taken[:4])) + (" ..." if len(taken) > 4 else "")
        text, verdict = f"{len(taken)} of {last - first + 1} taken: {shown}", LIMITS
        fix = f"launch() takes a free port itself. By hand: torchrun --master-port {_a_free_port()}"
        fix += f". Who has it: ss -ltnp 'sport = :{taken[0]}'."
    found.append(row("ports: rendezvous", text, needed, verdict, fix))
    port = options.lab_port
    if _is_free(port):
        return [*found, row("ports: JupyterLab", f"{port} is free", "one free port")]
    fix = "JupyterLab takes the next free one: use the address that make lab prints."
    return [*found, row("ports: JupyterLab", f"{port} is taken", "one free port", LIMITS, fix)]


def _loopback() -> dict:
    """A connection of this machine to itself, as ranks make it."""
    label, needed = "loopback", "127.0.0.1 connects to itself"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        fix = "Let the firewall or the container allow 127.0.0.1: ranks meet there."
        return row(label, str(error), needed, NOT_READY, fix)
    return row(label, "connects", needed)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _a_free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def disk(_) -> list[dict]:
    """Room where the course and its records lie, and how fast records are written."""
    logs = Path(os.environ.get("BOOTCAMP_LOGS", ROOT / "logs"))
    installed = _version("torch") is not None
    need = 2e9 if installed else 12e9
    free = shutil.disk_usage(ROOT).free
    needed = f"{need / 1e9:.0f} GB" + ("" if installed else ", to install")
    verdict = READY if free > need else NOT_READY
    fix = "" if free > need else "Free some space, or put the project on another disk."
    found = [row("disk: free", f"{free / 1e9:.0f} GB", needed, verdict, fix)]
    try:
        speed = _write_speed(logs)
    except OSError as error:
        fix = f"Let this user write to {logs.name}/, or name a folder in BOOTCAMP_LOGS."
        return [*found, row("disk: logs", str(error), "can be written", NOT_READY, fix)]
    slow = speed < 10e6
    fix = "A network disk? Name a folder on a local one in BOOTCAMP_LOGS." if slow else ""
    text = f"{speed / 1e6:.0f} MB/s written and synced"
    return [*found, row("disk: logs", text, "10 MB/s", LIMITS if slow else READY, fix)]


def _write_speed(logs: Path, size: int = 1 << 24) -> float:
    """Bytes per second into logs/, brought to the disk. Raises OSError."""
    logs.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=str(logs)) as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
        return size / (time.perf_counter() - began)


def instructor(_) -> list[dict]:
    """What only slides and the tests of pages need."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    fix = "For instructors: on Debian, apt install chromium. Lessons do not need it."
    found = [
        row("Chromium", "found", "to test pages")
        if browser and not hidden("chromium")
        else row("Chromium", "none", "to test pages", LIMITS, fix)
    ]
    if shutil.which("pandoc") or _version("pypandoc_binary"):
        return [*found, row("pandoc", "found", "to make slides")]
    fix = f"For instructors: {INSTALL} It brings a pandoc of its own."
    return [*found, row("pandoc", "none", "to make slides", LIMITS, fix)]


def hosts(_) -> list[dict]:
    """Whether two hosts can be made on this machine, as lesson 08 does."""
    label, needed = "simulated hosts", "lesson 08, to measure"
    if not modern():
        return []
    from bootcamp.launcher import simulated_hosts

    if why := simulated_hosts.why_not():
        return [row(label, why, needed, LIMITS, "Without them lesson 08 shows recorded runs.")]
    return [row(label, "two were made", needed)]


def compiler(_) -> list[dict]:
    """What Horovod is built with: lesson 05."""
    label, needed = "C++ compiler", "lesson 05, to build Horovod"
    if not modern():
        return []
    import horovod as build  # tools/horovod.py

    if why := ("Horovod is hidden." if hidden("horovod") else build.obstacle()):
        return [row(label, why, needed, LIMITS, "Without it lesson 05 shows a recorded run.")]
    done = _version("horovod")
    fix = "" if done else "make horovod builds it, once (minutes)."
    return [row(label, f"found, Horovod {done or 'not built yet'}", needed, READY, fix)]


def clock(_) -> list[dict]:
    """A clock that ticks finely enough, and is not before the files it would be compared with."""
    resolution = time.get_clock_info("perf_counter").resolution
    newest = max(path.stat().st_mtime for path in ROOT.glob("*.*") if path.is_file())
    now = time.strftime("%Y-%m-%d %H:%M")
    needed = "right, in steps of 1 µs or less"
    if time.time() < newest - 60:
        fix = "Set it (timedatectl set-ntp true): make and the order of runs go by it."
        return [row("clock", f"{now}, before the project's files", needed, LIMITS, fix)]
    verdict = READY if resolution <= 1e-6 else LIMITS
    return [row("clock", f"{now}, steps of {resolution * 1e9:.0f} ns", needed, verdict)]


def leases(_) -> list[dict]:
    """The folder by which several people on one machine take turns on its GPUs."""
    if not modern() or sys.platform == "win32":
        return []
    from bootcamp.launcher import device_locks

    folder, needed = device_locks.folder(), "for several people on one machine"
    if folder is None:
        return [row("device leases", "off", needed, LIMITS, "Unset BOOTCAMP_LEASES.")]
    if why := device_locks.why_not(folder):
        return [row("device leases", f"{folder}: {why}", needed, LIMITS, "See there.")]
    return [row("device leases", f"in {folder}", needed)]


# The launch: ranks in this machine's own way, in a process of its own that can be given up


class Launch:
    """Begins at once, in the background, since it loads torch; `rows()` waits for its end."""

    folder = None  # of its record, which is nobody's

    def __init__(self):
        self.process, self.deadline = None, time.monotonic() + MEASURE_SECONDS
        if modern() and all(_version(name) for name in _names("core")):
            self.folder = tempfile.mkdtemp(prefix="bootcamp-preflight-")
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--measure"],
                env={**os.environ, "BOOTCAMP_LOGS": self.folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def rows(self) -> list[dict]:
        try:
            return self._rows()
        finally:
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self) -> list[dict]:
        label, needed = "ranks talk", "a launch that ends well"
        if self.process is None:
            return [row(label, "not tried: the core is not installed", needed, NOT_READY, INSTALL)]
        try:
            left = max(0.1, self.deadline - time.monotonic())
            out, err = self.process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the supervisor sees it and ends the ranks
            self.process.communicate()
            fix = "The machine is busy, or ranks can't meet: look with top, and try again."
            text = f"no result after {MEASURE_SECONDS} s"
            return [row(label, text, needed, LIMITS, fix)]
        try:
            return [_talk(**json.loads(out.splitlines()[-1]))]
        except (IndexError, ValueError, TypeError):
            said = (err or out).strip().splitlines()
            fix = "Launch lesson 00's first run: its error says more."
            return [row(label, said[-1] if said else "failed", needed, NOT_READY, fix)]


def _talk(backend: str, ranks: int, rates: dict, gpus_of_torch: int) -> dict:
    """The row of an all-reduce: rates are bytes per second by size in bytes."""
    sizes = {int(size): rate for size, rate in rates.items()}
    shown = ", ".join(f"{_size(size)} {rate / 1e6:,.0f} MB/s" for size, rate in sizes.items())
    text, needed = f"{ranks} ranks, {backend}: {shown}", f"{SLOWEST[backend] / 1e6:,.0f} MB/s"
    if sizes[max(sizes)] < SLOWEST[backend]:
        fix = "Other programs take the cores, or GPUs have a slow link (nvidia-smi topo -m)."
        return row("ranks talk", text, needed, LIMITS, fix)
    if gpus_of_torch == 0 and shutil.which("nvidia-smi"):
        fix = "This torch has no CUDA, or not the driver's: install PyPI's (make clean, make lab)."
        return row("ranks talk", f"{text}; torch sees no GPU", needed, LIMITS, fix)
    return row("ranks talk", text, needed)


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def measure() -> None:
    """Launch a short sweep of the all-reduce, print what `_talk` wants, leave no record."""
    from bootcamp.launcher import launch

    ranks = max(2, launch.default_ranks())
    script = ROOT / "src" / "_sweep_all_reduce.py"
    flags = {"rounds": 2, "global_batch": ranks, "quiet": True, "hang_seconds": 10}
    try:
        run = launch.launch(script, ranks, **flags)
    except launch.LaunchError as error:
        if error.run:
            shutil.rmtree(error.run.folder, ignore_errors=True)
        sys.exit(str(error).splitlines()[0])
    sweep = json.loads((run.folder / "sweep.json").read_text())
    shutil.rmtree(run.folder)
    rates = {r["bytes"]: r["algorithm_bandwidth_bytes_per_second"] for r in sweep["rows"]}
    rates = {size: rates[size] for size in SHOWN_BYTES}
    about = {"backend": sweep["backend"], "ranks": ranks, "gpus_of_torch": launch.gpu_count()}
    print(json.dumps({**about, "rates": rates}))


CHECKS = {
    check.__name__: check
    for check in (python, packages, imports, cores, memory, gpus, ports, disk)
    + (hosts, compiler, instructor, leases, clock)
}


def run_checks(options) -> list[dict]:
    """All rows. The launch begins first and is waited for last."""
    launch = Launch() if "launch" in options.only else None
    found = []
    for name in CHECKS:
        if name in options.only:
            try:
                found += CHECKS[name](options)
            except Exception as error:  # a check that fails must not hide the others
                text = f"{type(error).__name__}: {error}"
                found.append(row(name, text, "a check that ends", LIMITS, "Tell the instructor."))
    return found + (launch.rows() if launch else [])


def table(rows: list[dict], widths: dict[str, int]) -> str:
    """Rows under their names, long cells wrapped."""
    lines = [_wrapped({name: name for name in widths}, widths)]
    lines.append("  ".join("-" * width for width in widths.values()))
    return "\n".join([*lines, *(_wrapped(each, widths) for each in rows)])


def _wrapped(cells: dict, widths: dict[str, int]) -> str:
    parts = [textwrap.wrap(str(cells[name]), width) for name, width in widths.items()]
    height = max(map(len, parts))
    columns = [part + [""] * (height - len(part)) for part in parts]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths.values())).rstrip()  # noqa: B905 (Python 3.8)
        for cells in zip(*columns)  # noqa: B905
    )


def widths() -> dict[str, int]:
    """The columns' widths: what is to be done takes what the terminal has left."""
    given = {"check": 20, "found": 30, "needed": 23, "verdict": 9}
    return {**given, "to do": max(30, shutil.get_terminal_size((130, 24)).columns - 92)}


def verdict(rows: list[dict]) -> str:
    """The worst of all rows, as a sentence for the reader."""
    bad = [each["check"] for each in rows if each["verdict"] == NOT_READY]
    limited = [each["check"] for each in rows if each["verdict"] == LIMITS]
    if bad:
        return f"Not ready: {', '.join(bad)}. What to do stands in the table."
    if limited:
        return f"Ready, with limits: {', '.join(limited)}."
    return "Ready."


def collect(files: list[str]) -> int:
    """One row for each attendee's JSON."""
    rows = []
    for name in files:
        try:
            said = json.loads(Path(name).read_text())
            who = f"{said['user']} on {said['host']}"
            rows.append({"who": who, "ready": said["ready"], "why": verdict(said["checks"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            rows.append({"who": name, "ready": False, "why": f"can't be read: {error}"})
    rows.sort(key=lambda each: each["ready"])
    print(table(rows, {"who": 30, "ready": 5, "why": 70}))
    return 0 if all(each["ready"] for each in rows) else 1


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _range(text: str) -> tuple[int, int]:
    first, last = text.split("-")
    return int(first), int(last)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*CHECKS, "launch"]
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--ports", type=_range, default="29400-29500", help="of a rendezvous")
    parser.add_argument("--lab-port", type=int, default=8888, help="that JupyterLab tries first")
    parser.add_argument("--collect", nargs="+", metavar="FILE", help="what --json has printed")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(names):
        parser.error(f"--only {', '.join(unknown)}: choose of {', '.join(names)}")
    if options.collect:
        return collect(options.collect)
    if options.measure:
        measure()
        return 0
    began = time.monotonic()
    rows = run_checks(options)
    ready = all(each["verdict"] != NOT_READY for each in rows)
    seconds = time.monotonic() - began
    if options.json:
        who = {"host": socket.gethostname(), "user": user()}
        print(json.dumps({**who, "ready": ready, "seconds": seconds, "checks": rows}, indent=1))
    else:
        print(table(rows, widths()))
        print(f"\n{verdict(rows)} ({seconds:.0f} s)")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
