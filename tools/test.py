"""python tools/test.py [--lesson 04 | --check] [PYTEST ARGUMENT ...]

Everything that `make test` proves, with the time of each part: lint, derived files, then all tests
and the cells of all notebooks on as many workers as there are cores; then, alone, the tests that
are marked so: they watch how long something takes; last two lessons cold, as an attendee runs them.
Runs that tests and lessons only read are trained once (tests/run_cache.py). A failing test is named
as it fails, and each test's outcome and seconds are in logs/tests.jsonl. --lesson runs what a
change to one lesson needs; --check, in about a minute, what needs no ranks.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interrupts
import lessons
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import processes  # noqa: E402

from bootcamp import machine  # noqa: E402
from bootcamp.launcher import forkserver, process_tree  # noqa: E402
from bootcamp.serving import triton  # noqa: E402

PYTEST = [sys.executable, "-m", "pytest"]
NBVAL = ["--nbval-lax", "--nbval-cell-timeout=240"]
# no more than cores: where ranks wait for a core, others of their run spin or poll meanwhile
WORKERS = ["-n", str(min(8, len(machine.cores()))), "--dist", "loadfile"]
SLOWEST = ["--durations=25", "--durations-min=3"]
QUICK = "not (alone or drill or slow)"
COLD = ["00", "04"]
LOG = ROOT / "logs" / "tests.jsonl"
TESTS = "tests/test_*.py"
OF_EVERY_LESSON = ["tests/test_lessons.py", "tests/test_snippets.py", "tests/test_scripts.py"]
TOGETHER, ATTENDEE = "notebooks and tests", "cold, as an attendee"
TESTS_FAILED = 1  # pytest's exit code
OF_KERNELS = ["ipykernel.kernelapp", "matplotlib.figure", "matplotlib.backends.backend_agg"]
MAY_STAY = {os.getpid()}
PR_SET_CHILD_SUBREAPER = 36


def static() -> dict[str, list[str]]:
    """What is read and not run."""
    return {
        "lint": [sys.executable, "-m", "ruff", "check", "."],
        "format": [sys.executable, "-m", "ruff", "format", "--check", "."],
        "types": [sys.executable, "-m", "mypy", "--no-error-summary"],
        "notebooks match their sources": [sys.executable, "tools/notebooks.py", "--check"],
        "map of the course": [sys.executable, "tools/lessons.py", "--check"],
    }


def parts(lesson: str | None, check: bool, more: list[str]) -> dict[str, list[str]]:
    """What is run, in order: a name and a command for each part."""
    if check:
        quick = [*PYTEST, "tests", "-m", QUICK, "--without-ranks", *WORKERS, *more]
        return {**static(), "tests without ranks": quick}
    if lesson is not None:
        chosen = lessons.find(lesson)
        tests = [f"tests/{name}" for name in chosen.tests]
        notebooks, shared = [str(chosen.notebook)], [*OF_EVERY_LESSON, *tests]
    else:
        notebooks, shared, tests = ["notebooks"], ["tests"], sorted(map(str, ROOT.glob(TESTS)))
    crowd = ["-m", "not alone", *WORKERS]
    together = [*PYTEST, *NBVAL, *crowd, *SLOWEST, *notebooks, *shared, *more]
    found = {**static(), TOGETHER: together}
    if alone := [path for path in tests if "pytest.mark.alone" in (ROOT / path).read_text()]:
        found["tests that run alone"] = [*PYTEST, "-m", "alone", *SLOWEST, *alone, *more]
    if cold := [lessons.find(number).file for number in COLD if lesson in (None, number)]:
        found[ATTENDEE] = [sys.executable, "tools/course.py", *cold]
    return found


def still_there(mark: str, seconds: float = 20.0) -> dict[int, str]:
    """Processes that began with this run's mark in their environment and do not go away."""
    deadline = time.monotonic() + seconds
    while True:
        reap()
        found = process_tree.find_marked("BOOTCAMP_TEST_RUN", mark) - MAY_STAY
        if not found or time.monotonic() > deadline:
            return {pid: process_tree.read_command(pid) for pid in found}
        time.sleep(0.2)


def find_traces() -> set[str]:
    """What simulated hosts and Triton may leave beside processes."""
    hosts = processes.find_host_traces().values() if sys.platform == "linux" else ()
    return set(map(str, Path("/tmp").glob(triton.FOLDERS))).union(*hosts)


def adopt_orphans() -> None:
    """Become the parent of what a part leaves, so that it can be told from other processes."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def schedule_as(policy: str) -> None:
    """Let what is started from now on be scheduled so: "OTHER", as usual, or "BATCH"."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, getattr(os, f"SCHED_{policy}"), os.sched_param(0))


def run(command: list[str]) -> int:
    """Run a part; its exit code. Orphans are reaped as they end, as init would: tests look."""
    part = subprocess.Popen(command)
    while part.returncode is None:
        pid, status = os.wait()
        if pid == part.pid:
            part.returncode = os.waitstatus_to_exitcode(status)
    return part.returncode


def run_again(cache: Path, most: int = 5) -> int:
    """Run the files that have failures once more, alone; the exit code.

    Whether a process has ended, a port is free or a rank has got a core can depend on what else
    runs. A test that fails twice fails the run; one that fails once is named. More files than
    `most` are no accident.
    """
    noted = cache / "v/cache/lastfailed"
    failed = json.loads(noted.read_text()) if noted.exists() else {}  # none, for a wrong skip
    files = sorted({name.partition("::")[0] for name in failed})
    print(f"== again, alone: {', '.join(failed)}", flush=True)
    if not 0 < len(files) <= most:
        return TESTS_FAILED
    return run([*PYTEST, *NBVAL, "-o", f"cache_dir={cache}", *files])


def reap() -> None:
    """Take leave of adopted processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def cpu_minutes() -> float:
    """Processor time of the machine since it started: on an idle one these tests add it all."""
    times = psutil.cpu_times()
    return (times.user + times.nice + times.system) / 60


def main() -> int:
    """Run all; what tests and torchrun leave among the system's temporary files goes too."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lesson", help="what a change to this lesson needs, such as 04")
    parser.add_argument("--check", action="store_true", help="only what needs no ranks")
    args, more = parser.parse_known_args()
    interrupts.accept()
    schedule_as("BATCH")  # else gloo's thread, when it wakes, spins for what the other holds
    try:
        commands = parts(args.lesson, args.check, more)
    except lessons.LessonError as error:
        print(error)
        return 2
    with tempfile.TemporaryDirectory(prefix="bootcamp-test-", ignore_cleanup_errors=True) as own:
        os.environ["TMPDIR"] = own
        for folder in ("LOGS", "WORK"):  # of the lessons that run as an attendee runs them
            os.environ[f"BOOTCAMP_{folder}"] = f"{own}/{folder.lower()}"
        cache = Path(own) / "runs"
        cache.mkdir()
        os.environ["BOOTCAMP_TEST_RUNS"] = str(cache)
        os.environ["BOOTCAMP_TEST_LOG"] = str(LOG)
        LOG.unlink(missing_ok=True)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # thousands of ranks import the same
        return run_all(commands, cache)


@contextlib.contextmanager
def warm_python_for(commands: dict[str, list[str]], folder: Path):
    """A Python with torch loaded, which tests may start programs with: tests/warm.py."""
    if sys.platform != "linux" or TOGETHER not in commands:
        yield
        return
    forkserver.install_shims(folder)
    os.environ["BOOTCAMP_TEST_PYTHON"] = str(folder / "python")
    serve = [sys.executable, "-P", forkserver.__file__, str(folder), *OF_KERNELS]
    with subprocess.Popen(serve, start_new_session=True) as server:
        MAY_STAY.add(server.pid)
        try:
            yield
        finally:
            server.kill()


def run_all(commands: dict[str, list[str]], cache: Path) -> int:
    """Run the parts in turn, then look for what they have left; the exit code."""
    os.chdir(ROOT)
    os.environ["BOOTCAMP_TEST_RUN"] = mark = f"{os.getpid()}-{time.time_ns()}"
    adopt_orphans()
    before = find_traces()
    times, failed = {}, []
    with warm_python_for(commands, cache.parent / "warm"):
        for name, command in commands.items():
            if command[:3] == PYTEST:
                command += ["-o", f"cache_dir={cache.parent / 'pytest'}"]
            print(f"== {name}", flush=True)
            if name == ATTENDEE:
                schedule_as("OTHER")
            began, used = time.monotonic(), cpu_minutes()
            code = run(command)
            if code == TESTS_FAILED and command[:3] == PYTEST:
                code = run_again(cache.parent / "pytest")
            times[name] = (time.monotonic() - began, cpu_minutes() - used)
            failed += [name] if code else []
        left = still_there(mark)
    print(f"\n{'part':32} {'seconds':>8} {'CPU minutes':>12}")
    times["all"] = tuple(map(sum, zip(*times.values(), strict=True)))
    for name, (seconds, minutes) in times.items():
        print(f"{name:32} {seconds:8.0f} {minutes:12.1f}")
    print(f"Processes left by all of this: {len(left)} {left or ''}", flush=True)
    if left:
        failed.append("processes left")
    new = find_traces() - before
    print(f"Left beside processes: {len(new)} {sorted(new) or ''}", flush=True)
    failed += ["traces"] if new else []
    if failed:
        print(f"FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
