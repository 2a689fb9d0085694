"""python tools/recorders/accuracy.py [--fit]

How wrong the planner is on published rows: each predicted by constants that were fitted to the
other rows of its stack, worst first, beside the error that logs/reference/accuracy.json has.
--fit fits the constants again first, and writes src/bootcamp/costs/fitted.json. Needs scipy.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass

import numpy as np

from bootcamp.costs import fitted_constants, planner, published
from bootcamp.costs.fitted_constants import STACKS
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

TOLERANCE = 0.02  # an error up to it counts squared, a larger one as it is (Huber's loss)
# what a stack never seen borrows from the others; True: for each kind of GPU apart
LENT = {"matmul": True, "attention": True, "memory": False, "network": False, "launch": False}
BELIEF = 8  # a constant's range is so many standard deviations of what is believed before
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
        return self.row["row_id"]

    @property
    def stack(self) -> str:
        return fitted_constants.find_stack(self.table)


def measured() -> list[Measured]:
    """Return the rows with a time, a throughput or an MFU, of all stacks that are fitted."""
    fitted = [about for about in STACKS.values() if about["constants"] or about["anchors"]]
    names = [name for about in fitted for name in about["tables"]]
    found = []
    for table in (name for name in names if (published.FOLDER / f"{name}.csv").exists()):
        for row in published.table(table):
            case = planner.read(row)
            if seconds := seconds_of_step(row, case):
                found.append(Measured(table, row, case, seconds))
    return found


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


def constants_of(data: Measured, values: dict, anchors: dict):
    """Return the planner's constants for a row from values at hand, and those published."""
    values = STACKS[data.stack]["published"] | values
    return fitted_constants.select_constants(values, anchors, *_who(data))


def error(data: Measured, values: dict, anchors: dict | None = None) -> float:
    """log(predicted / measured)."""
    answer = planner.answer(data.case, constants_of(data, values, anchors or {}))
    return math.log(answer.seconds / data.seconds)


def fit(stack: str, data: list[Measured]) -> dict[str, float]:
    """Fit a stack's constants: least Huber loss within their ranges, near what is believed before.

    The unknowns are the constants' logarithms.
    """
    from scipy.optimize import least_squares

    names = STACKS[stack]["constants"]
    data = [row for row in data if not anchored(row)]
    if not names or not data:
        return {}
    known = fitted_constants.EXPLAINED
    about = [known.get(name) or known[name.partition(" ")[0]] for name in names]
    start = np.log([entry["default"] for entry in about])
    low, high = (np.log([entry[end] for entry in about]) for end in ("low", "high"))

    def residuals(x):
        values = dict(zip(names, np.exp(x), strict=True))
        off = np.array([error(row, values) for row in data])
        huber = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + (off / TOLERANCE) ** 2) - 1))
        return np.concatenate([huber, (x - start) * BELIEF / (high - low) / 2])

    inside = np.clip(start, low + 0.1 * (high - low), high - 0.1 * (high - low))
    found = least_squares(residuals, inside, bounds=(low, high), method="dogbox", diff_step=1e-4)
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def anchored(row: Measured) -> bool:
    """An anchor absorbs how fast a table is, so that its rows say nothing of the constants."""
    known = STACKS[row.stack]["anchors"]
    return any(key in known for key in fitted_constants.anchor_keys(*_who(row)))


def anchors(stack: str, data: list[Measured], values: dict) -> dict[str, float]:
    """{key of constants.toml's anchors: measured over predicted, the median of its rows}."""
    found = {}
    for key in STACKS[stack]["anchors"]:
        off = [
            -error(row, values) for row in data if key in fitted_constants.anchor_keys(*_who(row))
        ]
        if off:
            found[key] = math.exp(statistics.median(off))
    return found


def _who(row: Measured) -> tuple[str, str, str]:
    return row.case.stack, row.case.cluster.gpu.name, row.case.method


def borrowed(fitted: dict[str, dict], data: list[Measured]) -> dict[str, float]:
    """Constants for a stack never seen: the median of those that were fitted to the others.

    Products and attention apart for each kind of GPU, where rows have it.
    """
    lent = {}
    for stack, found in fitted.items():
        names = {name.partition(" ")[0] for name in found["constants"]}
        capped = "clock" in names  # it slows products and attention alike
        names = (names | {"matmul", "attention"} if capped else names) & set(LENT)
        for row in {_kind(row): row for row in data if row.stack == stack}.values():
            c = constants_of(row, found["constants"], {})
            if capped and c.clock == 1:  # a kind of GPU that has none of its rows' constants
                continue
            for name in names:
                kind = f" {_kind(row)}" if LENT[name] else ""
                scale = c.clock if LENT[name] else 1
                lent.setdefault(name + kind, []).append(scale * getattr(c, name))
    return {name: statistics.median(values) for name, values in sorted(lent.items())}


def _kind(row: Measured) -> str:
    return row.case.cluster.gpu.kind


def fit_all(data: list[Measured]) -> dict[str, dict]:
    """{stack: constants, anchors, and the rows that they come from}.

    A stack of too few rows has anchors alone; under "" is what one never seen borrows.
    """
    own = {stack: [row for row in data if row.stack == stack] for stack in STACKS}
    found = {}
    for stack in (name for name, rows in own.items() if rows and STACKS[name]["constants"]):
        values = {name: round(value, 9) for name, value in fit(stack, own[stack]).items()}
        found[stack] = {"constants": values}
    lent = borrowed(found, data)
    for stack in filter(own.get, STACKS):
        about = found.setdefault(stack, {"constants": {}})
        known = about["constants"] or lent | STACKS[stack]["published"]
        about["rows"] = [row.name for row in own[stack]]
        near = anchors(stack, own[stack], known)
        about["anchors"] = {name: round(value, 6) for name, value in near.items()}
    return {**found, "": {"constants": lent, "anchors": {}, "rows": []}}


def write_fit(data: list[Measured]) -> None:
    """Fit the constants again, write fitted.json, and go on with what was found."""
    found = fit_all(data)
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
    (fitted_constants.HERE / "fitted.json").write_text("{" + ",\n".join(lines) + "}\n")
    fitted_constants.FITTED.clear()
    fitted_constants.FITTED.update(found)


def list_errors(data: list[Measured]) -> list[dict]:
    """List each row with its error by constants fitted without it, worst first.

    Rows of a stack without constants, or alone in it, are left out: nothing would predict them.
    """
    recorded = {
        (row["table"], row["row"], row["seconds"]): row["error %"]
        for row in read_json(REFERENCE / "accuracy.json")["rows"]
    }
    lines = []
    for row in data:
        others = [each for each in data if each.stack == row.stack and each is not row]
        if STACKS[row.stack]["constants"] and others:
            values = fit(row.stack, others)
            off = math.exp(error(row, values, anchors(row.stack, others, values))) - 1
            line = {"table": row.table, "row": row.name, "seconds": row.seconds}
            line |= {"predicted": row.seconds * (1 + off), "error %": 100 * off}
            as_recorded = recorded[row.table, row.name, float(f"{row.seconds:.4g}")]
            lines.append(line | {"recorded %": as_recorded})
    return sorted(lines, key=lambda line: -abs(line["error %"]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit again, and write fitted.json")
    data = measured()
    if parser.parse_args().fit:
        write_fit(data)
    lines = list_errors(data)
    mean = statistics.mean(abs(line["error %"]) for line in lines)
    caption = f"{len(lines)} rows, each predicted without it; in the mean {mean:.1f} % off"
    print(Table(lines, caption))
    return 0


if __name__ == "__main__":
    sys.exit(main())
