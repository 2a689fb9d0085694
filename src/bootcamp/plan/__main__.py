"""python -m bootcamp.plan < plans.csv > predictions.csv

Predicts each row of a table of plans: one row one plan, the same rows in the same order come back
with seconds_per_step, tokens_per_second_per_gpu (samples for images), mfu and hfu (shares of the
GPU's dense 16 bit peak, attention counted in full), peak_gb (1e9 bytes), peak_gib (2**30), limit
(what limits), warning (columns that nobody reads) and error (why a row has no answer; the others
are answered). --json reads and writes a list of objects in place of CSV. --columns lists the
columns that are read, --stacks the names for the column `stack`. Columns row_id, source, note and
published_* pass through.
"""

import argparse
import csv
import io
import json
import sys

from bootcamp.costs import fitted_constants, plan_table, planner
from bootcamp.costs.hardware import GB, GIB

NUMBERS = ("seconds_per_step", "tokens_per_second_per_gpu", "mfu", "hfu", "peak_gb", "peak_gib")
ADDED = (*NUMBERS, "limit", "warning", "error")


def answered(row: dict) -> dict:
    """Return the row with the columns of ADDED; what has no answer is None, a text then ""."""
    found = dict.fromkeys(NUMBERS) | {"limit": "", "warning": warning(row), "error": ""}
    try:
        if None in row:  # csv puts there what is beyond the header
            raise ValueError("the row has more values than the header has columns")
        answer = planner.answer(plan_table.read(row))
        held = answer.peak_bytes
        numbers = answer.seconds, answer.tokens, answer.mfu, answer.hfu, held / GB, held / GIB
        found |= dict(zip(NUMBERS, numbers, strict=True)) | {"limit": answer.limit}
    except ValueError as problem:
        found["error"] = str(problem)
    except (ArithmeticError, LookupError, TypeError) as problem:
        # a row must never keep the others from their answers
        found["error"] = f"no answer: {type(problem).__name__}: {problem}"
    return {key: value for key, value in row.items() if key is not None} | found


def warning(columns) -> str:
    """Return a sentence that names the columns that nobody reads; "" for none."""
    names = ", ".join(plan_table.unknown(filter(None, columns), ADDED))
    return f"ignored, since not in --columns: {names}" if names else ""


def from_json(text: str) -> list[dict]:
    """Read a list of objects. Raises ValueError for anything else."""
    plans = json.loads(text)
    if not isinstance(plans, list) or not all(isinstance(plan, dict) for plan in plans):
        raise ValueError("expected a list of objects")
    return plans


def main(arguments: list[str] | None = None) -> int:
    """Read plans from the standard input, write them answered to the standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m bootcamp.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="a list of objects in, and out")
    parser.add_argument("--columns", action="store_true", help="list the columns that are read")
    parser.add_argument("--stacks", action="store_true", help="list the stacks and their tables")
    chosen = parser.parse_args(arguments)
    if chosen.columns:
        short = {name: f"{name}, {alias}" for alias, name in plan_table.ALIASES.items()}
        print(
            "\n".join(f"{short.get(n, n)}: {means}" for n, (_, means) in plan_table.COLUMNS.items())
        )
        return 0
    if chosen.stacks:
        print(
            "\n".join(
                f"{n}: {', '.join(a['tables'])}" for n, a in fitted_constants.families().items()
            )
        )
        return 0
    text = sys.stdin.read().lstrip("\ufeff")
    try:
        table = csv.DictReader(io.StringIO(text), skipinitialspace=True)
        plans = from_json(text) if chosen.json else list(table)
    except ValueError as problem:
        print(f"the input is no JSON: {problem}", file=sys.stderr)
        return 2
    columns = list(dict.fromkeys(key for plan in plans for key in plan if key is not None))
    if unread := warning(columns):
        print(unread, file=sys.stderr)
    found = [answered(plan) for plan in plans]
    if chosen.json:
        print(json.dumps(found, indent=1))
        return 0
    columns += [name for name in ADDED if name not in columns]
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
