"""python tools/recorders/accuracy.py [--fit] [--record]

How wrong the planner is on published rows: each with its error, worst first, predicted by constants
that were fitted without it. Below them the constants, with the rows that each had; the same rows by
one fitted constant, seconds = c x FLOPs, and by two other planners as they were recorded once (see
logs/README.md); and what happens when more is left out together.

--fit fits the constants again and writes src/bootcamp/costs/fitted.json; --record keeps all that is
printed in logs/reference/accuracy.json.
"""

import argparse
import itertools
import json
import math
import statistics
import sys

import published_fit
from published_fit import Measured

from bootcamp.costs import fitted_constants
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

RECORD = REFERENCE / "accuracy.json"
RIVALS = ("mlsysim", "llm-analysis")


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


def sum_up(off: list[float]) -> dict:
    """Count errors, with the mean and the largest of their sizes in percent."""
    sizes = [100 * abs(x) for x in off]
    return {"rows": len(sizes), "mean %": statistics.mean(sizes), "largest %": max(sizes)}


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
        told = {
            name: known.get(name) or known[name.partition(" ")[0]] for name in found["constants"]
        }
        means = {name: (f"{e['low']:g} to {e['high']:g}", e["is"]) for name, e in told.items()}
        anchors = {f"anchor {name}": value for name, value in found["anchors"].items()}
        for name, value in {**found["constants"], **anchors}.items():
            near, meaning = means.get(name, ("-", "measured over predicted"))
            line = {"stack": stack, "constant": name, "value": value, "range": near}
            lines.append({**line, "rows of the stack": len(found["rows"]), "is": meaning})
    rows_of_all = sum(len(found["rows"]) for found in fitted.values())
    return Table(lines, f"{len(lines)} fitted numbers from {rows_of_all} rows")


def rows_table(data: list[Measured]) -> Table:
    """Every row with its error, left out, worst first."""
    lines, recorded = [], read_json(RECORD)["rows"]
    said = {(row["table"], row["row"], row["seconds"]): row for row in recorded}
    for own in published_fit.group_by(data, lambda row: row.stack):
        stack, off = own[0].stack, [math.nan] * len(own)
        if fitted_constants.STACKS[stack]["constants"] and len(own) > 1:  # else nothing is left
            off = [x for _, x in published_fit.leave_out(stack, own, [[row] for row in own])]
        for row, mine, plain in zip(own, off, by_flops(own), strict=True):
            line = {"table": row.table, "row": row.name, "seconds": row.seconds}
            line |= {"predicted": row.seconds * (1 + mine), "error %": 100 * mine}
            line["one constant %"] = 100 * plain
            rivals = said[row.table, row.name, _round(row.seconds)]
            lines.append(line | {f"{name} %": rivals[f"{name} %"] or math.nan for name in RIVALS})
    lines.sort(key=lambda line: 1 if math.isnan(line["error %"]) else -abs(line["error %"]))
    return Table(lines, "every row, predicted without it, worst first")


def tables_table(rows: Table) -> Table:
    """Each published table: its errors, and how many pairs of its rows are ranked correctly."""
    found = []
    for table in sorted({line["table"] for line in rows.rows}, key=published_fit.TABLES.index):
        mine = [line for line in rows.rows if line["table"] == table]
        if any(math.isnan(line["error %"]) for line in mine):
            continue
        pairs = [(a, b) for a, b in itertools.combinations(mine, 2) if a["seconds"] != b["seconds"]]
        right = [
            (a["seconds"] < b["seconds"]) == (a["predicted"] < b["predicted"]) for a, b in pairs
        ]
        line = {"table": table, **sum_up([line["error %"] / 100 for line in mine])}
        line["pairs ranked correctly %"] = 100 * statistics.mean(right) if right else None
        for other in ("one constant", *RIVALS):
            said = [abs(x[f"{other} %"]) for x in mine if not math.isnan(x[f"{other} %"])]
            line[f"{other}, mean %"] = statistics.mean(said) if said else None
        found.append(line)
    return Table(found, "each row left out once")


def harder(data: list[Measured]) -> Table:
    """Halves, quarters, whole sizes and whole meshes left out; and stacks as if never seen."""
    lines = []
    for own in published_fit.group_by(data, lambda row: row.stack):
        stack = own[0].stack
        trials = {"all but one row, an anchor": published_fit.never_seen(stack, data)}
        groups = {
            "random halves": published_fit.cut_randomly(own, 2),
            "random quarters": published_fit.cut_randomly(own, 4),
            "a model's size": published_fit.group_by(own, size_of),
            "a mesh": published_fit.group_by(own, mesh_of),
        }
        if len(own) >= 7:
            trials |= {name: published_fit.leave_out(stack, own, g) for name, g in groups.items()}
        for name, found in trials.items():
            for table in dict.fromkeys(row.table for row in own):
                off = [x for row, x in found if row.table == table]
                if off:
                    lines.append({"left out": name, "table": table, **sum_up(off)})
    lines.sort(key=lambda line: line["left out"] == "all but one row, an anchor")
    return Table(lines, "harder: what is left out together")


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
    chosen = parser.parse_args()
    data = published_fit.measured()
    if chosen.fit:
        write_fit(data)
    rows = rows_table(data)
    shown = {
        "rows": rows,
        "constants": constants_table(fitted_constants.FITTED),
        "harder": harder(data),
        "tables": tables_table(rows),
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
