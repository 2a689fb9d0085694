"""python -m bootcamp.plan < plans.csv > predictions.csv

Predicts each row of a table of plans: one row one plan, the same rows in the same order come back
with seconds_per_step, low and high (it lies between them four times in five),
tokens_per_second_per_gpu (samples for images), mfu and hfu (shares of the GPU's dense 16 bit peak,
attention in full), peak_gb (1e9 bytes), peak_gib (2**30), days, gpu_hours, dollars, mwh (of tokens
to train, with saves and failures), limit (what limits), warning (columns that nobody reads), error
(why a row has no answer; others are answered). --columns lists the columns that are read. --json
reads and writes a list of objects. Columns row_id, source, note and published_* pass through.
"""

import argparse
import csv
import io
import json
import sys
from difflib import get_close_matches

from bootcamp.costs import planner
from bootcamp.costs.hardware import GB, GIB

OF_ANSWER = {"seconds_per_step": "seconds", "tokens_per_second_per_gpu": "tokens"}
OF_ANSWER |= {name: name for name in ("mfu", "hfu", "limit")}
ADDED = ["seconds_per_step", "low", "high", "tokens_per_second_per_gpu", "mfu", "hfu", "peak_gb"]
ADDED += ["peak_gib", "days", "gpu_hours", "dollars", "mwh", "limit", "warning", "error"]
UNREAD = ("row_id", "source", "note")  # and published_*: allowed, and not read


def answer_row(row: dict) -> dict:
    """Return the row with the columns of ADDED; numbers without an answer are None."""
    found = dict.fromkeys(ADDED) | {"limit": "", "warning": _warn(row), "error": ""}
    try:
        if None in row:  # csv puts there what is beyond the header
            raise ValueError("the row has more values than the header has columns")
        answer = planner.answer(case := planner.read(row))
        found |= {name: getattr(answer, of) for name, of in OF_ANSWER.items()}
        found |= {"peak_gb": answer.peak_bytes / GB, "peak_gib": answer.peak_bytes / GIB}
        found |= planner.surround(case, answer)
    except (ValueError, ArithmeticError) as problem:  # never keeps other rows from their answers
        found["error"] = str(problem)
    return {key: value for key, value in row.items() if key is not None} | found


def _warn(columns) -> str:
    """Name the columns that nobody reads in a sentence, with columns of similar names."""
    known, unknown = {*planner.COLUMNS, *planner.ALIASES, *UNREAD, *ADDED}, []
    for column in filter(None, columns):
        name = str(column).strip().lower()
        if name not in known and not name.startswith("published_"):
            near = get_close_matches(name, planner.COLUMNS, 1, 0.5)
            unknown.append(f"{column} (did you mean {near[0]}?)" if near else f"{column}")
    return f"ignored, since not in --columns: {', '.join(unknown)}" if unknown else ""


def main(arguments: list[str] | None = None) -> int:
    """Read plans from the standard input, write them answered to the standard output."""
    how = {"prog": "python -m bootcamp.plan", "description": __doc__}
    parser = argparse.ArgumentParser(**how, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", action="store_true", help="list the columns that are read")
    parser.add_argument("--json", action="store_true", help="a list of objects in, and out")
    chosen = parser.parse_args(arguments)
    if chosen.columns:
        aliases = {name: f"{name}, {alias}" for alias, name in planner.ALIASES.items()}
        for name, (_, meaning) in planner.COLUMNS.items():
            print(f"{aliases.get(name, name)}: {meaning}")
        return 0
    text = sys.stdin.read().lstrip("\ufeff")
    try:
        table = csv.DictReader(io.StringIO(text), skipinitialspace=True)
        plans = json.loads(text) if chosen.json else list(table)
        if not (isinstance(plans, list) and all(isinstance(plan, dict) for plan in plans)):
            raise ValueError("expected a list of objects")
    except ValueError as problem:
        print(f"the input is no JSON: {problem}", file=sys.stderr)
        return 2
    columns = list(dict.fromkeys(key for plan in plans for key in plan if key is not None))
    if unread := _warn(columns):
        print(unread, file=sys.stderr)
    answers = [answer_row(plan) for plan in plans]
    if chosen.json:
        print(json.dumps(answers, indent=1))
        return 0
    columns += [name for name in ADDED if name not in columns]
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
