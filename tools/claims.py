"""python tools/claims.py [--reference] [NAME ...]

Every claim of the course, tested on this machine: executes the notebooks, prints a row for each
claim with its verdict, and how many there are of each kind, and writes both under
logs/claims/<time>/. --reference also makes the result what the course's reference machine found
(logs/reference/claims.json): with every lesson, with nothing contradicted, and with a note for each
claim whether the machine was quiet. BOOTCAMP_CLAIM_SECONDS gives every claim on time that budget.
Exit code 1 if a notebook failed or a claim is contradicted.
"""

import argparse
import sys
import time
from pathlib import Path

import course
import interrupts

from bootcamp import files, machine, quietness
from bootcamp.experiments import claims
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.table import Table


def test_all(lessons: list[course.Lesson]) -> dict[str, dict]:
    """Execute the lessons; the claims that they tested."""
    began = time.time()
    for _ in course.executed(lessons):
        pass
    return claims.read_notes(since=began)


def why_no_reference(lessons: list[course.Lesson], found: dict[str, dict], names) -> str:
    """What keeps a result from being the reference; empty if nothing does."""
    bad = [name for name, claim in found.items() if claim["verdict"] == claims.CONTRADICTED]
    failed = [lesson.path.stem for lesson in lessons if lesson.error]
    reasons = {
        "not every lesson was asked for": names,
        f"lessons failed: {', '.join(failed)}": failed,
        f"contradicted: {', '.join(bad)}": bad,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def write(found: dict[str, dict], folder: Path) -> tuple[Table, Table]:
    """Write the claims as data, and as a page to read; return the page's tables."""
    files.write_json(folder / "claims.json", {"machine": machine.describe(), "claims": found})
    tables = (course.list_claims(found), course.count_verdicts(found))
    (folder / "claims.txt").write_text("\n\n".join(map(str, tables)) + "\n")
    return tables


def record(found: dict[str, dict]) -> None:
    """Make this what the reference machine found."""
    kept = {
        name: {key: _short(value) for key, value in claim.items() if key != "name"}
        for name, claim in found.items()
    }
    content = {"machine": machine.describe(), "date": time.strftime("%Y-%m-%d"), "claims": kept}
    files.write_json(REFERENCE / claims.FILE, content)


def _short(value):
    return round(value, 4) if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="lessons, such as 04 (default: all)")
    parser.add_argument("--reference", action="store_true", help="record this as the reference")
    args = parser.parse_args()
    interrupts.accept()
    folder = LOGS / "claims" / time.strftime("%Y%m%d-%H%M%S")
    try:
        lessons = course.prepared(args.names, folder)
    except course.LessonError as error:
        print(error)
        return 2
    print(quietness.measure())
    found = test_all(lessons)
    for lesson in lessons:
        if lesson.error:
            print(f"{lesson.path.stem} failed:\n{lesson.error}")
    tables = write(found, folder)
    print(*tables, f"Written to {folder}", sep="\n\n")
    if args.reference:
        why_not = why_no_reference(lessons, found, args.names)
        print(f"Not recorded: {why_not}." if why_not else "Recorded as the reference.")
        if not why_not:
            record(found)
    verdicts = [claim["verdict"] for claim in found.values()]
    return 1 if claims.CONTRADICTED in verdicts or any(it.error for it in lessons) else 0


if __name__ == "__main__":
    sys.exit(main())
