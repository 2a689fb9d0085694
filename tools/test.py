"""python tools/test.py [PYTEST ARGUMENT ...]

Everything that `make test` proves, in order, with the time that each part took: lint, derived
files, unit tests with every script, the equality proofs and the faults, the browser, and nbval over
every notebook.
"""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bootcamp.launcher import process_tree, simulated_hosts

ROOT = Path(__file__).resolve().parents[1]
CELL_SECONDS = 240
SHARDED = ["tests/test_checkpoint.py", "tests/test_sharding.py", "tests/test_hosts.py"]
CLASSROOM = ["clinic", "exercise_mistakes", "bring", "capstone", "slides", "widgets"]
CLASSROOM = [f"tests/test_{name}.py" for name in CLASSROOM]
ALONE = ["faults", "launch", "live", "browser"]
ALONE = [f"tests/test_{name}.py" for name in ALONE]


def stages() -> list[list[dict[str, list[str]]]]:
    """What `make test` runs: stages in order, their lanes side by side, a lane's parts in turn.

    Starting ranks waits more than it computes, so lanes at once save half of their time. The tests
    of faults, of the launcher and of the browser watch how long something takes: they run alone.
    """
    python = sys.executable
    notebooks = sorted(str(path) for path in (ROOT / "notebooks").glob("*.ipynb"))
    nbval = ["--nbval-lax", f"--nbval-cell-timeout={CELL_SECONDS}", "--timeout=0"]
    pytest = [python, "-m", "pytest"]
    others = [f"--ignore={path}" for path in (*ALONE, *SHARDED, *CLASSROOM)]
    return [
        [{"lint": [python, "-m", "ruff", "check", "."]}],
        [{"format": [python, "-m", "ruff", "format", "--check", "."]}],
        [{"notebooks match their sources": [python, "tools/notebooks.py", "--check"]}],
        [
            {"notebooks, every other": [*pytest, *nbval, *notebooks[0::2]]},
            {
                "tests": [*pytest, "tests", *others, *sys.argv[1:]],
                "tests of the classroom": [*pytest, *CLASSROOM, *sys.argv[1:]],
            },
            {
                "notebooks, the rest": [*pytest, *nbval, *notebooks[1::2]],
                "tests of sharding": [*pytest, *SHARDED, *sys.argv[1:]],
            },
        ],
        [{"tests that run alone": [*pytest, *ALONE, *sys.argv[1:]]}],
    ]


def run_side_by_side(lanes: list[dict[str, list[str]]]) -> dict[str, tuple[int, float]]:
    """Run a stage's lanes at once; of each part its exit code and seconds.

    The first lane's output is seen as it comes, that of the others when it is whole.
    """
    with ThreadPoolExecutor(len(lanes)) as pool:
        ended = pool.map(run_lane, range(len(lanes)), lanes)
        return {name: result for lane in ended for name, result in lane.items()}


def run_lane(place: int, lane: dict[str, list[str]]) -> dict[str, tuple[int, float]]:
    """Run a lane's parts in turn, their ranks beginning with the core of this place."""
    ended = {}
    for name, command in lane.items():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE if place else None,
            stderr=subprocess.STDOUT,
            env={**os.environ, "BOOTCAMP_FIRST_CORE": str(place)},
        )
        if place:
            output = done.stdout.decode(errors="replace")
            print(f"== {name}, its output\n{output}", flush=True)
        ended[name] = (done.returncode, time.monotonic() - began)
    return ended


def still_there(mark: str, seconds: float = 20.0) -> list[int]:
    """Processes that began with this run's mark in their environment and do not go away."""
    deadline = time.monotonic() + seconds
    while True:
        found = [
            process.pid
            for process in process_tree.processes().values()
            if process.state not in "ZX"
            and process.pid != os.getpid()
            and process_tree.environment(process.pid).get("BOOTCAMP_TEST_RUN") == mark
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def main() -> int:
    """Run all; what tests and torchrun leave among the system's temporary files goes too."""
    with tempfile.TemporaryDirectory(prefix="bootcamp-test-", ignore_cleanup_errors=True) as own:
        os.environ["TMPDIR"] = own
        return run_all()


def run_all() -> int:
    os.chdir(ROOT)
    os.environ["BOOTCAMP_TEST_RUN"] = mark = f"{os.getpid()}-{time.time_ns()}"
    before = simulated_hosts.traces() if sys.platform == "linux" else {}
    times, failed = {}, []
    for stage in stages():
        for name, (code, seconds) in run_side_by_side(stage).items():
            times[name] = seconds
            failed += [name] if code else []
    print("\n".join(f"{name:32} {seconds:6.0f} s" for name, seconds in times.items()), flush=True)
    left = {pid: process_tree.command(pid) for pid in still_there(mark)}
    print(f"Processes left by all of this: {len(left)} {left or ''}", flush=True)
    if left:
        failed.append("processes left")
    for kind, was in before.items():
        new = sorted(set(simulated_hosts.traces()[kind]) - set(was))
        print(f"{kind.capitalize()} left: {len(new)} {new or ''}", flush=True)
        failed += [f"{kind} left"] if new else []
    if failed:
        print(f"FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
