"""python tools/recorders/accuracy.py [--fit]

How wrong the planner is on published runs: on the half that its constants were fitted to, beside
the half held out, to which no number is fitted. (What the step consists of was chosen with its
errors in view, so they flatter a little.) Also what each constant gains there, and how often the
truth lies in a prediction's interval. --fit fits first, and writes fitted.json and intervals.json
of src/bootcamp/costs and logs/reference/accuracy.json. Needs scipy; a minute or two.
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter

import numpy as np

from bootcamp.costs import fitted_constants, planner, published
from bootcamp.costs.fitted_constants import EXPLAINED, SHARED, STACKS, UNSEEN
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

SEED = 33  # of the split: it was drawn before any constant was fitted to a half
SIZES = {"1 to 8": 8, "to 64": 64, "to 512": 512, "above": math.inf}  # GPUs
FEW = 4  # rows: a stack with fewer is held out whole
# predicted as runs of a stack never seen, so that a large run is not predicted by itself
NEVER_FITTED = ("llama3_table4", "megascale", "mtnlg_530b")
TOLERANCE = 0.03  # an error up to it counts squared, a larger one as it is (Huber's loss)
BELIEF = 4  # a constant's range is so many standard deviations of what is believed before
CLASSES = (8, 512, math.inf)  # GPUs at most: of what is alike in how far predictions are off
OFTEN = 0.8  # of the truths lie in their prediction's interval
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


def keys(*without: tuple[str, str]) -> list[tuple[str, str]]:
    """List (stack, constant) of what is fitted; "" is all stacks."""
    own = [(stack, name) for stack, about in STACKS.items() for name in about["constants"]]
    return [key for key in [("", name) for name in SHARED] + own if key not in without]


def about(name: str) -> dict:
    """Return what constants.toml says of a constant, or of its kind."""
    return EXPLAINED.get(name) or EXPLAINED[name.partition(" ")[0]]


def log_error(row: Measured, found: dict[str, dict], stack: str | None = None) -> float:
    """log(predicted / measured) by constants as in fitted.json. stack: in place of the row's."""
    chosen = stack or row.stack, row.case.cluster.gpu.name, row.case.method
    c = fitted_constants.select_constants(found, *chosen)
    return math.log(planner.answer(row.case, c).seconds / row.seconds)


def fit(rows: list[Measured], unknown: list[tuple[str, str]]) -> dict[str, dict]:
    """Fit all constants together: least Huber loss of the logs, near what is believed before."""
    from scipy.optimize import least_squares

    stacks = dict.fromkeys(row.stack for row in rows)
    unknown = [(stack, name) for stack, name in unknown if not stack or stack in stacks]
    known = [about(name) for _, name in unknown]
    start = np.log([each["default"] for each in known])
    width = np.log([each["high"] / each["low"] for each in known]) / BELIEF

    def unpack(x) -> dict[str, dict]:
        found = {"": {}} | {stack: {} for stack in stacks}
        values = np.exp(start + width * (x - 1)).tolist()
        for (stack, name), value in zip(unknown, values, strict=True):
            found[stack][name] = float(f"{value:.6g}")
        return found

    def residuals(x):
        off = np.array([log_error(row, unpack(x)) for row in rows]) / TOLERANCE
        huber = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
        return np.concatenate([huber, x - 1])

    return unpack(least_squares(residuals, np.ones(len(start)), diff_step=1e-3).x)


def without_stacks(rows: list[Measured], others: list[Measured]) -> list[tuple[Measured, float]]:
    """List (row, log of its error) of each row as of a stack never seen.

    Fitted is to `others`, less those of the row's stack.
    """
    found = {}
    for stack in dict.fromkeys(row.stack for row in rows):
        found[stack] = fit([row for row in others if row.stack != stack], keys())
    return [(row, log_error(row, found[row.stack], UNSEEN)) for row in rows]


# What is printed


def percent(logs: Iterable[float]) -> list[float]:
    return [100 * abs(math.expm1(each)) for each in logs]


def count_pairs(rows: list[tuple[Measured, float]]) -> tuple[int, int]:
    """Count the pairs of rows of one table that are ranked correctly, and all of them."""
    right = both = 0
    for (one, off), (other, by) in combinations(rows, 2):
        if one.table == other.table and one.seconds != other.seconds:
            ours = one.seconds * math.exp(off) < other.seconds * math.exp(by)
            right, both = right + (ours == (one.seconds < other.seconds)), both + 1
    return right, both


def describe(rows: list[tuple[Measured, float]]) -> dict:
    """Return mean, its interval by bootstrap, median, 90th percentile and largest error in %."""
    off = percent(each for _, each in rows)
    drawn = np.random.default_rng(SEED).choice(off, (2000, len(off))).mean(axis=1)
    low, high = np.quantile(drawn, (0.05, 0.95))
    right, pairs = count_pairs(rows)
    return {
        "rows": len(off),
        "mean %": statistics.mean(off),
        "90 % of means": f"{low:.1f} to {high:.1f}",
        "median %": statistics.median(off),
        "p90 %": float(np.quantile(off, 0.9)),
        "largest %": max(off),
        "pairs ranked correctly %": 100 * right / pairs if pairs else None,
    }


def compare(halves: dict[str, list], by: str, key: Callable[[Measured], str]) -> Table:
    """Table the errors of the halves beside each other, by what `key` says of a row."""
    groups = dict.fromkeys(key(row) for rows in halves.values() for row, _ in rows)
    lines = []
    for group in [*groups, "all"]:
        for half, rows in halves.items():
            own = [pair for pair in rows if group in ("all", key(pair[0]))]
            lines += [{by: group, "half": half, **describe(own)}] if own else []
    return Table(lines, f"Errors in seconds of a step, by {by}")


def most_off(logs: list[float]) -> float:
    """Return the error that OFTEN of the next ones stay below (split conformal prediction)."""
    ordered = sorted(map(abs, logs))
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * OFTEN)) - 1]


def most_off_of_stacks(rows: list[tuple[Measured, float]]) -> float:
    """Return the same for a stack that is none of these, each of which counts as one."""
    counts = Counter(row.stack for row, _ in rows)
    off, weights = zip(*((abs(off), 1 / counts[row.stack]) for row, off in rows), strict=True)
    return float(np.quantile(off, OFTEN, weights=weights, method="inverted_cdf"))


def size_of(row: Measured) -> float:
    return next(most for most in CLASSES if row.case.cluster.gpus <= most)


def intervals(seen: list, unseen: list) -> dict[str, dict[str, float]]:
    """{stack seen or not: {most GPUs: how far predictions are off}}.

    Too few stacks are large: one never seen has the interval of all, or of large ones where wider.
    """
    sizes = {
        f"{most}": round(most_off([off for row, off in seen if size_of(row) == most]), 4)
        for most in CLASSES
    }
    all_sizes = round(most_off_of_stacks(unseen), 4)
    largest = max(all_sizes, sizes["inf"])
    return {"seen": sizes, UNSEEN: {"512": all_sizes, "inf": largest}}


def calibrate(seen: list, unseen: list) -> list[dict]:
    """List the share of rows that lie in the interval which other rows, or other stacks, set."""
    lines, held = [], {most: [] for most in CLASSES}
    for row, off in seen:
        alike = [o for r, o in seen if r is not row and size_of(r) == size_of(row)]
        held[size_of(row)].append(abs(off) <= most_off(alike))
    for most, inside in [*held.items(), ("any number", sum(held.values(), []))]:
        line = {"stack": "seen", "GPUs, at most": f"{most}", "rows": len(inside)}
        lines.append(line | {"inside %": 100 * statistics.mean(inside)})
    shares = {}
    for stack in dict.fromkeys(row.stack for row, _ in unseen):
        most = most_off_of_stacks([pair for pair in unseen if pair[0].stack != stack])
        shares[stack] = [abs(off) <= most for row, off in unseen if row.stack == stack]
    line = {"stack": f"{UNSEEN}, the mean of {len(shares)} left out", "GPUs, at most": "any number"}
    mean = statistics.mean(map(statistics.mean, shares.values()))
    return [*lines, line | {"rows": len(unseen), "inside %": 100 * mean}]


def list_constants(fitted: list[Measured], held: list[Measured], found: dict) -> list[dict]:
    """List each fitted number, and how much further off the held-out rows are without it."""
    lines = []
    for stack, name in keys():
        less = fit(fitted, keys((stack, name)))
        rows = [row for row in held if row.stack in found and stack in ("", row.stack)]
        off = [statistics.mean(percent(log_error(r, each) for r in rows)) for each in (found, less)]
        known = about(name)
        line = {"constant": name, "stack": stack or "all", "value": found[stack][name]}
        line["unit"] = "s" if known["is"].startswith("seconds") else "1"
        line |= {
            "range": f"{known['low']:g} to {known['high']:g}",
            "gains, points": off[1] - off[0],
        }
        lines.append(line | {"is": known["is"]})
    return lines


def list_rows(loo: list, held: list) -> list[dict]:
    """List each row with its error by constants fitted without it, worst first."""
    lines = []
    for half, rows in (("fitted", loo), ("held out", held)):
        for row, off in rows:
            seconds = float(f"{row.seconds:.4g}")
            line = {"table": row.table, "row": row.row["row_id"], "half": half, "seconds": seconds}
            line["predicted"] = float(f"{row.seconds * math.exp(off):.4g}")
            line["error %"] = float(f"{100 * math.expm1(off):.4g}")
            lines.append(line)
    return sorted(lines, key=lambda line: -abs(line["error %"]))


def of_intervals(fitted: list[Measured], held: list[Measured], found: dict) -> tuple[list, list]:
    """Return what intervals come from: held-out rows; all rows as of stacks never seen."""
    seen = [(row, log_error(row, found)) for row in held if row.stack in found]
    images = "tf_cnn_benchmarks"  # no stack shares its one constant
    return seen, without_stacks([row for row in fitted + held if row.stack != images], fitted)


def evaluate(fitted: list[Measured], held: list[Measured], found: dict) -> dict[str, Table]:
    """Table all that is printed; "intervals" is what intervals.json holds."""
    both = {"fitted": fitted, "held out": held}
    halves = {half: [(r, log_error(r, found)) for r in rows] for half, rows in both.items()}
    seen, unseen = of_intervals(fitted, held, found)
    inside = "How many of the truths lie in an interval of 80 %"
    return {
        "by table": compare(halves, "table", attrgetter("table")),
        "by size": compare(halves, "GPUs", attrgetter("size")),
        "by stack left out": compare({"its stack left out": unseen}, "table", attrgetter("table")),
        "calibration": Table(calibrate(seen, unseen), inside),
        "constants": Table(list_constants(fitted, held, found), "The fitted numbers"),
        "intervals": intervals(seen, unseen),
    }


def write(fitted: list[Measured], held: list[Measured], found: dict, tables: dict) -> None:
    """Write intervals.json, and the record with each row predicted by a fit without it."""
    text = json.dumps(tables.pop("intervals"))
    (fitted_constants.HERE / "intervals.json").write_text(f"{text}\n")
    off = [(r, log_error(r, fit([o for o in fitted if o is not r], keys()))) for r in fitted]
    apart = [(row, log_error(row, found)) for row in held]
    record = {"rows": list_rows(off, apart)}
    names = dict.fromkeys(row["table"] for row in record["rows"])
    own = {name: [pair for pair in off + apart if pair[0].table == name] for name in names}
    record["tables"] = [{"table": name, **describe(rows)} for name, rows in own.items()]
    for name in ("by table", "calibration", "constants"):
        record[name] = [dict(row) for row in tables[name]]
    (REFERENCE / "accuracy.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit again, and write what is found")
    (fitted, held), again = split(measured()), parser.parse_args().fit
    stored = fitted_constants.HERE / "fitted.json"
    if again:
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in fit(fitted, keys()).items()]
        stored.write_text("{" + ",\n".join(lines) + "}\n")
    found = read_json(stored)
    tables = evaluate(fitted, held, found)
    for table in list(tables.values())[:-1]:
        print(table, end="\n\n", flush=True)
    if again:
        write(fitted, held, found, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
