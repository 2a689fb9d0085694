"""python tools/recorders/accuracy.py

The rows of published runs that the planner's constants are fitted to; the others are held out, and
nobody looks at them before a fit is final.
"""

import math
import random
import sys
from dataclasses import dataclass

from bootcamp.costs import fitted_constants, planner, published
from bootcamp.costs.fitted_constants import STACKS
from bootcamp.table import Table

SEED = 33  # of the split: it was drawn before any constant was fitted to a half
SIZES = {"1 to 8": 8, "to 64": 64, "to 512": 512, "above": math.inf}  # GPUs
FEW = 4  # rows: a stack with fewer is held out whole
# predicted as runs of a stack never seen, so that a large run is not predicted by itself
NEVER_FITTED = ("llama3_table4", "megascale", "mtnlg_530b")
# columns published_*, any of which says how long a step takes
RATES = ("seconds", "milliseconds", "seconds_of_200_steps", "images_per_second")
RATES += ("tokens_per_second_per_gpu", "tflops_per_gpu", "mfu_percent")


@dataclass
class Measured:
    """A published row: what it asks, and the seconds of a step that it measured."""

    table: str
    row: dict
    case: planner.Workload
    seconds: float

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.row["row_id"], self.row.get("method"))))

    @property
    def stack(self) -> str:
        return fitted_constants.find_stack(self.table)

    @property
    def size(self) -> str:
        gpus = self.case.cluster.gpus
        return next(name for name, most in SIZES.items() if gpus <= most)


def measured() -> list[Measured]:
    """Return the rows with a time, a throughput or an MFU, of all stacks."""
    names = [name for about in STACKS.values() for name in about["tables"]]
    found = []
    for table in (name for name in names if (published.FOLDER / f"{name}.csv").exists()):
        for row in (row for row in published.table(table) if "stack" in row):
            case = planner.read(row)
            if seconds := seconds_of_step(row, case):
                found.append(Measured(table, row, case, seconds))
    return found


def split(data: list[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Return (fitted, held out): of each stack and size one half each, by the seed."""
    groups, fitted = {}, set()
    for row in data:
        groups.setdefault((row.stack, row.size), []).append(row)
    for (stack, size), rows in groups.items():
        if sum(each.stack == stack for each in data) >= FEW:
            rows = sorted(row.name for row in rows if row.table not in NEVER_FITTED)
            random.Random(f"{SEED} {stack} {size}").shuffle(rows)
            fitted |= set(rows[: math.ceil(len(rows) / 2)])
    return [r for r in data if r.name in fitted], [r for r in data if r.name not in fitted]


def seconds_of_step(row: dict, case: planner.Workload) -> float | None:
    """Return the seconds of a step as published, worked out from what the row has."""
    found = {name: float(row.get(f"published_{name}") or 0) for name in RATES}
    seconds = found["seconds"] or found["milliseconds"] / 1e3
    if seconds := seconds or found["seconds_of_200_steps"] / 200:
        return seconds
    if found["images_per_second"]:
        return case.plan.batch / found["images_per_second"]
    if case.shape is None:
        return None
    tokens = case.plan.batch * case.shape.sequence / case.cluster.gpus
    if found["tokens_per_second_per_gpu"]:
        return tokens / found["tokens_per_second_per_gpu"]
    flops = tokens * case.shape.flops_of_token()
    if row["stack"].startswith("ptdp"):  # counts the recomputed forward, as its formula does
        again = tokens * case.shape.recomputed_of_token("full")
        return (flops + again) / (1e12 * found["tflops_per_gpu"])
    share = found["mfu_percent"] / 100
    return flops / (share * case.cluster.gpu.peak) if share else None


def main() -> int:
    fitted, _ = split(measured())
    rows = [{"table": row.table, "row": row.name, "GPUs": row.size} for row in fitted]
    print(Table(rows, "The half of the published rows that is fitted"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
