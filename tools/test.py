"""python tools/test.py [PYTEST ARGUMENT ...]

Everything that `make test` proves, in order, with the time that each part took: lint, derived
files, unit tests with every script, the equality proofs and the faults, the browser, and nbval over
every notebook.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from bootcamp import descendants

ROOT = Path(__file__).resolve().parents[1]
CELL_SECONDS = 240


def parts() -> dict[str, list[str]]:
    """The parts of `make test`: a name and a command each."""
    python = sys.executable
    notebooks = sorted(str(path) for path in (ROOT / "notebooks").glob("*.ipynb"))
    nbval = ["--nbval-lax", f"--nbval-cell-timeout={CELL_SECONDS}", "--timeout=0"]
    return {
        "lint": [python, "-m", "ruff", "check", "."],
        "format": [python, "-m", "ruff", "format", "--check", "."],
        "notebooks match their sources": [python, "tools/notebooks.py", "--check"],
        "notebooks": [python, "-m", "pytest", *nbval, *notebooks],
        "tests": [python, "-m", "pytest", "tests", *sys.argv[1:]],
    }


def still_there(mark: str, seconds: float = 20.0) -> list[int]:
    """Processes that began with this run's mark in their environment and do not go away."""
    deadline = time.monotonic() + seconds
    while True:
        found = [
            process.pid
            for process in descendants.processes().values()
            if process.state not in "ZX"
            and process.pid != os.getpid()
            and descendants.environment(process.pid).get("BOOTCAMP_TEST_RUN") == mark
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def main() -> int:
    os.chdir(ROOT)
    os.environ["BOOTCAMP_TEST_RUN"] = mark = f"{os.getpid()}-{time.time_ns()}"
    times, failed = {}, []
    for name, command in parts().items():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        if subprocess.run(command).returncode:
            failed.append(name)
        times[name] = time.monotonic() - began
    print("\n".join(f"{name:32} {seconds:6.0f} s" for name, seconds in times.items()), flush=True)
    left = {pid: descendants.command(pid) for pid in still_there(mark)}
    print(f"Processes left by all of this: {len(left)} {left or ''}", flush=True)
    if left:
        failed.append("processes left")
    if failed:
        print(f"FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
