"""python tools/drills.py [--times 10] [TEST ...]

Run the tests that kill and stall ranks, hosts, jobs, servers and a browser's kernel again, and
again, each time in a process that trains anew. The machine should be idle: each fault has to end
within its seconds (tests/faults.py). Prints a table and writes logs/drills.json; ends with 1 if
anything went wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import interrupts

from bootcamp.files import write_json
from bootcamp.paths import LOGS, ROOT
from bootcamp.table import Table

FAULTS = ("faults", "hang", "live", "several_hosts", "host_drills", "slurm_jobs", "serving")
TESTS = [f"tests/test_{name}.py" for name in (*FAULTS, "browser")]


def run_once(tests: list[str]) -> list[dict]:
    """Run tests in a process of their own; the rows of its log: tests/plugin.py."""
    with tempfile.TemporaryDirectory(prefix="bootcamp-drills-") as folder:
        log = Path(folder, "tests.jsonl")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
        own = {"BOOTCAMP_TEST_LOG": str(log), "BOOTCAMP_DRILLS": "1"}
        subprocess.run(command, cwd=ROOT, env=os.environ | own)
        lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def sum_up(rows: list[dict]) -> list[dict]:
    """Sum up each test, the worst first: tries, those that went wrong, and their seconds."""
    seconds, bad = defaultdict(list), defaultdict(set)
    for number, row in enumerate(rows):
        if row["when"] == "call" and row["outcome"] != "skipped":
            seconds[row["test"]].append(row["seconds"])
        if row["outcome"] == "failed":
            bad[row["test"]].add(number)
    found = [
        {"drill": test, "times": len(seconds[test]), "bad": len(bad[test])}
        | {"median s": median(seconds[test] or [0]), "longest s": max(seconds[test], default=0)}
        for test in {**seconds, **bad}
    ]
    return sorted(found, key=lambda row: -row["bad"])


def main() -> int:
    interrupts.accept()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("tests", nargs="*", help="default: all that break something", default=TESTS)
    args = parser.parse_args()
    if args.times < 1:
        parser.error("--times is 1 or more")
    found = sum_up([row for _ in range(args.times) for row in run_once(args.tests)])
    print(Table(found, f"Drills, {args.times} times"), flush=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    write_json(LOGS / "drills.json", {"drills": found})
    return 0 if found and not any(row["bad"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
