"""Where and why a run failed, in few lines: `print(failed_lines.of(run))`."""

import re

from bootcamp.records.runs import Run

PLACES = ("variants", "bootcamp/train/models")  # of the course's code that a reader can change
ERROR = re.compile(r"^\w+(?:Error|Exception): \S.*", re.MULTILINE)


def cause(run: Run) -> str:
    """The first error of a failed run: where one error led to another, the one that began it."""
    error = run.summary["error"]
    found = ERROR.search(error["traceback"])
    return found[0] if found else error["message"]


def of(run: Run) -> str:
    """The error of a failed run, and the lines of its script and its model that led there."""
    lines = [line.strip() for line in run.summary["error"]["traceback"].splitlines()]
    shown = [
        lines[number + 1]
        for number, line in enumerate(lines)
        if line.startswith("File") and any(place in line for place in PLACES)
    ]
    return "\n       ".join([cause(run), *shown])
