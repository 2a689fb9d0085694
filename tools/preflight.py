"""python3 tools/preflight.py [--only NAME,NAME] [--json]

Is this machine ready for the course? A line for each check: what was found, what is needed, and
below it what to do. Exit code 0 if the machine is ready, or will be when `make lab` has installed
the packages; 1 if something else is in the way.

It works before anything is installed; of a Python that is too old it says only that. With the
course's own Python it also starts ranks and measures how fast they talk. `--json` prints the same
for a program; `--collect FILE ...` reads such files, one for each attendee, and prints a line for
each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import preflight_checks as checks  # noqa: E402
from preflight_checks import INSTALL, LIMITS, NOT_READY, ROOT, TO_INSTALL, row  # noqa: E402

SIZE = 32 << 20  # bytes of the all-reduce
SLOWEST = {"gloo": 50e6, "nccl": 1e9}  # bytes per second; less is a fault
MEASURE_SECONDS = 26


def ranks_talk() -> dict:
    """Launch ranks in this machine's own way, in a process that can be given up."""
    label, needed = "ranks talk", "a launch that ends well"
    if not checks.has_core():
        verdict = NOT_READY if checks.is_made() else TO_INSTALL
        return row(label, "not tried: the core is not installed", needed, verdict, INSTALL)
    with tempfile.TemporaryDirectory(
        prefix="bootcamp-preflight-", ignore_cleanup_errors=True
    ) as logs:
        command = [sys.executable, __file__, "--measure"]
        try:  # when it is killed, the supervisor sees it and ends the ranks
            said = subprocess.run(
                command,
                env={**os.environ, "BOOTCAMP_LOGS": logs},
                capture_output=True,
                text=True,
                timeout=MEASURE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            fix = "The machine is busy, or ranks can't meet: look with top, and try again."
            return row(label, f"no result after {MEASURE_SECONDS} s", needed, LIMITS, fix)
    try:
        return judge(**json.loads(said.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        last = (said.stderr or said.stdout).strip().splitlines()[-1:] or ["failed"]
        fix = "Launch lesson 00's first run: its error says more."
        return row(label, last[0], needed, NOT_READY, fix)


def judge(backend: str, ranks: int, rate: float, gpus_of_torch: int) -> dict:
    """The row of an all-reduce of SIZE: its rate is in bytes per second."""
    text = f"{ranks} ranks, {backend}: {rate / 1e6:,.0f} MB/s"
    needed = f"{SLOWEST[backend] / 1e6:,.0f} MB/s with {SIZE >> 20} MiB"
    if rate < SLOWEST[backend]:
        fix = "Other programs take the cores, or GPUs have a slow link (nvidia-smi topo -m)."
        return row("ranks talk", text, needed, LIMITS, fix)
    if gpus_of_torch == 0 and shutil.which("nvidia-smi"):
        fix = "This torch has no CUDA, or not the driver's: install PyPI's (make clean, make lab)."
        return row("ranks talk", f"{text}; torch sees no GPU", needed, LIMITS, fix)
    return row("ranks talk", text, needed)


def measure() -> None:
    """Launch a short sweep of the all-reduce, print what `judge` wants, leave no record."""
    from bootcamp.launcher import launch

    ranks = max(2, launch.default_ranks())
    script = ROOT / "src" / "snippets" / "sweep_all_reduce.py"
    flags = {"rounds": 2, "global_batch": ranks, "quiet": True}
    try:
        run = launch.launch(script, ranks, options=launch.Options(hang_seconds=10), **flags)
    except launch.LaunchError as error:
        if error.run:
            shutil.rmtree(error.run.folder, ignore_errors=True)
        sys.exit(str(error).splitlines()[0])
    sweep = json.loads((run.folder / "sweep.json").read_text())
    shutil.rmtree(run.folder)
    (row,) = (row for row in sweep["rows"] if row["bytes"] == SIZE)
    about = {"backend": sweep["backend"], "ranks": ranks, "gpus_of_torch": launch.gpu_count()}
    print(json.dumps({**about, "rate": row["algorithm_bandwidth_bytes_per_second"]}))


def run_checks(options) -> list[dict]:
    """All rows; of a Python that is too old only that."""
    if sys.version_info < checks.LOWEST_PYTHON:
        return checks.python(options)
    known, found = {**checks.CHECKS, "launch": lambda _: [ranks_talk()]}, []
    for name in (name for name in known if name in options.only):
        try:
            found += known[name](options)
        except Exception as error:  # which must not hide the other rows
            text = f"{type(error).__name__}: {error}"
            found.append(row(name, text, "a check that ends", LIMITS, "Tell the instructor."))
    return found


def table(rows: list[dict]) -> str:
    """A line for each row, and one below it where something is to be done."""
    lines = []
    for each in rows:
        line = f"{each['verdict']:9}  {each['check']:20}  {each['found']}"
        lines.append(f"{line}  (needed: {each['needed']})")
        lines += [f"{'':11}{each['to do']}"] if each["to do"] else []
    return "\n".join(lines)


def worst(rows: list[dict]) -> str:
    """Return the worst verdict of all rows."""
    order = (checks.READY, LIMITS, TO_INSTALL, NOT_READY)
    return max((each["verdict"] for each in rows), key=order.index, default=checks.READY)


def verdict(rows: list[dict]) -> str:
    """Sum up all rows in a sentence for the reader."""
    last = worst(rows)
    these = ", ".join(each["check"] for each in rows if each["verdict"] == last)
    return {
        NOT_READY: f"Not ready: {these}. What to do is said below each.",
        TO_INSTALL: f"Can be installed: make lab. Missing until then: {these}.",
        LIMITS: f"Ready, with limits: {these}.",
        checks.READY: "Ready.",
    }[last]


def collect(files: list[str]) -> int:
    """Print a line for each attendee's JSON: who needs help first, then who has to install."""
    said, order = [], (NOT_READY, TO_INSTALL, LIMITS, checks.READY)
    for name in files:
        try:
            one = json.loads(Path(name).read_text())
            who = f"{one.get('user', 'a user without a name')} on {one.get('host', 'no host name')}"
            rows = one["checks"]
            said.append((order.index(worst(rows)), f"{name}: {who}", verdict(rows)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            said.append((0, name, f"is not a result of make preflight JSON=1 ({why})"))
    for _, who, why in sorted(said, key=lambda each: each[0]):
        print(f"{who:40}  {why}")
    return 0 if all(place for place, _, _ in said) else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*checks.CHECKS, "launch"]
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--collect", nargs="+", metavar="FILE", help="what --json has printed")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(names):
        given = ", ".join(map(repr, sorted(unknown)))
        parser.error(f"--only has no {given}: choose of {', '.join(names)}")
    if options.collect:
        return collect(options.collect)
    if options.measure:
        measure()
        return 0
    began = time.monotonic()
    rows = run_checks(options)
    ready = worst(rows) != NOT_READY
    seconds = time.monotonic() - began
    if options.json:
        user = os.environ.get("USER", str(os.getuid()))  # in a container it may have no name
        said = {"host": socket.gethostname(), "user": user, "ready": ready}
        said |= {"verdict": worst(rows), "seconds": seconds, "checks": rows}
        print(json.dumps(said, indent=1))
    else:
        print(f"{table(rows)}\n\n{verdict(rows)} ({seconds:.0f} s)")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
