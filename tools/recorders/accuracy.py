"""python tools/recorders/accuracy.py [--fit] [--record] [--times N]

How wrong the planner is on published rows: each with its error, worst first, predicted by constants
that were fitted without it. Below them the constants, with the rows that each had; the same rows by
one fitted constant, seconds = c x FLOPs, and by two other planners as they were recorded once (see
logs/README.md); published memory; and what happens when more is left out together.

--fit fits the constants again and writes src/bootcamp/costs/fitted.json; --record keeps all that is
printed in logs/reference/accuracy.json. --times: how often each stack is cut into random halves and
quarters.
"""

import argparse
import json
import math
import statistics
import sys

import published_fit
from published_fit import Measured

from bootcamp.costs import fitted_constants, published
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.plan import __main__
from bootcamp.table import Table

RECORD = REFERENCE / "accuracy.json"
RIVALS = ("mlsysim", "llm-analysis")
PEAKS = {  # columns published_*: the answer's column that they are held to
    "published_peak_gib": "peak_gib",
    "published_peak_gb": "peak_gb",
    "published_bytes": "peak_gb",
}
MEMORY = ["torchtitan", "zero_figure1", "zero_table1", "ultrascale_memory", "deepspeed_memory"]
MEMORY += ["korthikanti_table2_eval"]


def by_flops(data: list[Measured]) -> list[float]:
    """Errors of seconds = c x FLOPs / peak / GPUs, c the median of the other rows of the stack."""
    each = [math.log(row.seconds / _flops(row)) if row.case.shape else math.nan for row in data]
    found = []
    for i, mine in enumerate(each):
        others = [x for j, x in enumerate(each) if j != i and not math.isnan(x)]
        found.append(math.exp(statistics.median(others) - mine) - 1 if others else math.nan)
    return found


def _flops(row: Measured) -> float:
    """Ideal seconds: the model's FLOPs and what is computed again, at the peak."""
    case = row.case
    token = case.shape.flops_of_token() + case.shape.recomputed_of_token(case.plan.recompute)
    return case.plan.batch * case.shape.sequence * token / case.cluster.gpus / case.cluster.gpu.peak


def summary(off: list[float]) -> dict:
    """Mean, median, 90th percentile and largest of |error|, in percent."""
    size = sorted(100 * abs(x) for x in off)
    return {
        "rows": len(size),
        "mean %": statistics.mean(size),
        "median %": statistics.median(size),
        "90 % within %": size[min(len(size) - 1, math.ceil(0.9 * len(size)) - 1)],
        "largest %": size[-1],
    }


def size_of(row: Measured) -> str:
    """The model of a row."""
    shape = row.case.shape
    return f"{shape.hidden} x {shape.layers}" if shape else row.case.network["model"]


def mesh_of(row: Measured) -> str:
    """How a row's ranks share model and batch."""
    plan = row.case.plan
    return f"tp {plan.tensor} pp {plan.pipeline} dp {plan.data} cp {plan.context}"


def constants_table(fitted: dict[str, dict]) -> Table:
    """Each constant and anchor with its stack, number of rows, range and meaning."""
    known, lines = fitted_constants.EXPLAINED, []
    for stack, found in fitted.items():
        if not stack:  # medians of the others
            continue
        for name, value in found["constants"].items():
            about = known.get(name) or known[name.partition(" ")[0]]
            near = f"{about['low']:g} to {about['high']:g}"
            lines.append(_line(stack, name, value, near, about["is"], found))
        for name, value in found["anchors"].items():
            lines.append(
                _line(stack, f"anchor {name}", value, "-", "measured over predicted", found)
            )
    rows_of_all = sum(len(found["rows"]) for found in fitted.values())
    return Table(lines, f"{len(lines)} fitted numbers from {rows_of_all} rows")


def _line(stack, name, value, near, means, found) -> dict:
    numbers = {
        "value": float(f"{value:.4g}"),
        "range": near,
        "rows of the stack": len(found["rows"]),
    }
    return {"stack": stack, "constant": name, **numbers, "is": means}


def rows_table(data: list[Measured]) -> tuple[Table, Table]:
    """Every row with its error, left out, worst first; and a line for each table."""
    lines, recorded = [], read_json(RECORD)["rows"]
    said = {(row["table"], row["row"], row["seconds"]): row for row in recorded}
    for stack in dict.fromkeys(row.stack for row in data):
        own = [row for row in data if row.stack == stack]
        alone = fitted_constants.STACKS[stack]["constants"] and len(own) > 1  # else nothing is left
        off = published_fit.left_out(stack, own) if alone else [math.nan] * len(own)
        for row, mine, plain in zip(own, off, by_flops(own), strict=True):
            line = {"table": row.table, "row": row.name, "seconds": row.seconds}
            line |= {"predicted": row.seconds * (1 + mine), "error %": 100 * mine}
            line["one constant %"] = 100 * plain
            rivals = said[row.table, row.name, _round(row.seconds)]
            line |= {f"{name} %": rivals[f"{name} %"] or math.nan for name in RIVALS}
            lines.append(line)
    lines.sort(key=lambda line: -abs(line["error %"]) if line["error %"] == line["error %"] else 1)
    table = _by_table(data, lines, ["one constant", *RIVALS])
    return Table(lines, "every row, predicted without it, worst first"), table


def _by_table(data: list[Measured], lines: list[dict], others: list[str]) -> Table:
    by_row = {(line["table"], line["row"], line["seconds"]): line for line in lines}
    found = []
    for table in dict.fromkeys(row.table for row in data):
        own = [row for row in data if row.table == table]
        mine = [by_row[table, row.name, row.seconds] for row in own]
        errors = [line["error %"] / 100 for line in mine]
        if any(math.isnan(x) for x in errors):
            continue
        right, total = published_fit.pairs(own, errors)
        line = {"table": table, **summary(errors)}
        line["pairs ranked rightly %"] = 100 * right / total if total else None
        for other in others:
            said = [abs(x[f"{other} %"]) for x in mine if not math.isnan(x[f"{other} %"])]
            line[f"{other}, mean %"] = statistics.mean(said) if said else None
        found.append(line)
    return Table(found, "each row left out once")


def harder(data: list[Measured], times: int) -> Table:
    """Halves, quarters, whole sizes and whole meshes left out; and stacks as if never seen."""
    lines = []
    for stack in dict.fromkeys(row.stack for row in data):
        own = [row for row in data if row.stack == stack]
        trials = {"all but one row, an anchor": published_fit.never_seen(stack, data)}
        if len(own) >= 7:
            trials |= {
                "random halves": published_fit.shares(stack, own, 2, times),
                "random quarters": published_fit.shares(stack, own, 4, times),
                "a model's size": published_fit.groups_left_out(stack, own, size_of),
                "a mesh": published_fit.groups_left_out(stack, own, mesh_of),
            }
        for name, found in trials.items():
            for table in dict.fromkeys(row.table for row in own):
                off = [x for row, x in found if row.table == table]
                if off:
                    lines.append({"left out": name, "table": table, **summary(off)})
    lines.sort(key=lambda line: line["left out"] == "all but one row, an anchor")
    return Table(lines, "harder: what is left out together")


def peaks() -> Table:
    """Every published row with a GPU's memory: the planner's peak, or its states, beside it."""
    lines = []
    for table in MEMORY:
        for row in published.table(table):
            column = next((name for name in PEAKS if row.get(name)), None)
            if column is None:
                continue
            measured = float(row[column]) / (1e9 if "bytes" in column else 1)
            found = __main__.answer_row(row)[PEAKS[column]]
            line = {"table": table, "row": row["row_id"]}
            line |= {"published": measured, "predicted": found}
            lines.append(line | {"error %": 100 * (found / measured - 1)})
    lines.sort(key=lambda line: -abs(line["error %"]))
    return Table(lines, "memory of a GPU in GB, torchtitan's and DeepSpeed's in GiB, worst first")


def write_fit(data: list[Measured]) -> None:
    """Fit the constants again, write fitted.json, and go on with what was found."""
    found = published_fit.fit_all(data)
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
    (fitted_constants.HERE / "fitted.json").write_text("{" + ",\n".join(lines) + "}\n")
    fitted_constants.FITTED.clear()
    fitted_constants.FITTED.update(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit again, and write fitted.json")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name} too")
    parser.add_argument("--times", type=int, default=2, help="random halves and quarters of each")
    chosen = parser.parse_args()
    if chosen.times < 1:
        parser.error("--times is 1 or more")
    data = published_fit.measured()
    if chosen.fit:
        write_fit(data)
    every, each_table = rows_table(data)
    shown = {
        "rows": every,
        "constants": constants_table(fitted_constants.FITTED),
        "harder": harder(data, chosen.times),
        "peaks": peaks(),
        "tables": each_table,
    }
    for table in shown.values():
        print(table, end="\n\n")
    if chosen.record:
        kept = {name: read_json(RECORD)[name] for name in RIVALS}
        for name, table in shown.items():
            kept[name] = [{key: _round(value) for key, value in row.items()} for row in table.rows]
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


def _round(value):
    """Four digits of a number, None for what is not one; anything else as it is."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
