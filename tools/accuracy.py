"""python tools/accuracy.py [--fit] [--halves N]

How wrong the planner is on published rows: each with its error, worst first, predicted by constants
that were fitted without it. Below them the constants, with the rows that each had; the same rows by
one fitted constant, seconds = c x FLOPs, and by mlsysim where it is installed. --fit fits the
constants again and writes src/bootcamp/plan/fitted.json; --record keeps all that is printed in
logs/reference/accuracy.json. --halves: how many times each stack is cut
into random halves, one of which predicts the other. numpy.
"""

import argparse
import importlib.metadata
import itertools
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from bootcamp.plan import predict, rows, stacks, tables  # noqa: E402
from bootcamp.table import Table  # noqa: E402

RECORD = Path(__file__).resolve().parents[1] / "logs" / "reference" / "accuracy.json"
TOLERANCE = 0.04  # an error up to it counts squared, a larger one as it is (Huber's loss)
# what a stack never seen borrows from the others; True: for each kind of GPU apart
LENT = {"matmul": True, "attention": True, "memory": False, "network": False, "launch": False}
BELIEF = 8  # a constant's range is so many standard deviations of what is believed before
TABLES = [
    "vtrain_single",
    "vtrain_multi",
    "mosaicml_mpt",
    "ptdp_table1",
    "ptdp_table2_zero3",
    "korthikanti_table5",
    "korthikanti_table4_layer",
    "megascale",
    "mtnlg_530b",
    "torchtitan",
    "ibm_fsdp_hsdp",
    "llama3_table4",
    "megatron_bridge_h100",
    "tf_cnn_benchmarks",
    "hf_dp_vs_ddp",
]


@dataclass
class Measured:
    """A published row: what it asks, and the seconds of a step that it measured."""

    table: str
    row: dict
    case: rows.Case
    seconds: float

    @property
    def name(self) -> str:
        return self.row["row_id"]

    @property
    def stack(self) -> str:
        return self.case.stack


def measured(names: list[str] = TABLES) -> list[Measured]:
    """The rows with a time, a throughput or an MFU, of all tables."""
    found = []
    for table in names:
        for row in tables.table(table):
            case = rows.read({**row, "stack": table})
            if seconds := truth(table, row, case):
                found.append(Measured(table, row, case, seconds))
    return found


def truth(table: str, row: dict, case: rows.Case) -> float | None:
    """Seconds of a step as published, worked out from what the row has."""
    if milliseconds := row.get("iteration time (ms)") or row.get("combined_ms"):
        return float(milliseconds) / 1e3
    if row.get("iter_s"):
        return float(row["iter_s"])
    if row.get("images_s"):
        return case.plan.batch / float(row["images_s"])
    if row.get("train_runtime_s"):
        return float(row["train_runtime_s"]) / 200  # steps, as its workload says
    if case.shape is None:
        return None
    tokens = case.plan.batch * case.shape.sequence / case.cluster.gpus
    if row.get("tok_s_gpu"):
        return tokens / float(row["tok_s_gpu"])
    flops = tokens * case.shape.flops_of_token()
    if table.startswith("ptdp"):  # counts the recomputed forward, as its formula does
        again = tokens * case.shape.recomputed_of_token("full")
        return (flops + again) / (1e12 * float(row["tflops_gpu"]))
    share = float(row.get("bf16_mfu_pct") or row.get("mfu_pct") or 0) / 100
    return flops / (share * case.cluster.gpu.peak) if share else None


def constants_of(data: Measured, values: dict, anchors: dict):
    """The planner's constants for a row from values at hand, and those that are given."""
    return stacks.of({**stacks.given(data.stack), **values}, anchors, *_who(data))


def error(data: Measured, values: dict, anchors: dict | None = None) -> float:
    """log(predicted / measured)."""
    answer = predict.answer(data.case, constants_of(data, values, anchors or {}))
    return math.log(answer.seconds / data.seconds)


def fit(stack: str, data: list[Measured]) -> dict[str, float]:
    """A stack's constants: least Huber loss within their ranges, near what is believed before.

    Levenberg and Marquardt's steps in the constants' logarithms.
    """
    names = stacks.families()[stack]["constants"]
    if not names or not data:
        return {}
    known = stacks.explained()
    about = [known.get(name) or known[name.partition(" ")[0]] for name in names]
    start = np.log([entry["default"] for entry in about])
    low, high = (np.log([entry[end] for entry in about]) for end in ("low", "high"))

    def residuals(x):
        values = dict(zip(names, np.exp(x), strict=True))
        off = np.array([error(row, values) for row in data])
        huber = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + (off / TOLERANCE) ** 2) - 1))
        return np.concatenate([huber, (x - start) * BELIEF / (high - low) / 2])

    x, damping = start, 1e-2
    now = residuals(x)
    for _ in range(30):
        step = 1e-4
        slopes = [(residuals(x + step * unit) - now) / step for unit in np.eye(len(x))]
        slopes = np.stack(slopes, axis=1)
        for _ in range(8):
            hessian = slopes.T @ slopes
            move = np.linalg.solve(hessian + damping * np.eye(len(x)), -slopes.T @ now)
            there = np.clip(x + move, low, high)
            then = residuals(there)
            if then @ then < now @ now:
                break
            damping *= 5
        else:
            break
        gained = now @ now - then @ then
        x, now, damping = there, then, max(damping / 4, 1e-7)
        if gained < 1e-5 * (now @ now):
            break
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def anchors(stack: str, data: list[Measured], values: dict) -> dict[str, float]:
    """{key of constants.toml's anchors: measured over predicted, the median of its rows}."""
    found = {}
    for key in stacks.families()[stack].get("anchors", ()):
        off = [-error(row, values) for row in data if key in stacks.anchor_keys(*_who(row))]
        if off:
            found[key] = math.exp(statistics.median(off))
    return found


def _who(row: Measured) -> tuple[str, str, str]:
    return row.case.table, row.case.cluster.gpu.name, row.case.method


def left_out(stack: str, data: list[Measured]) -> list[float]:
    """The relative error of each row, by constants fitted to the stack's other rows."""
    found = []
    for i, row in enumerate(data):
        rest = data[:i] + data[i + 1 :]
        values = fit(stack, rest)
        near = anchors(stack, rest, values)
        found.append(math.exp(error(row, values, near)) - 1)
    return found


def pairs(data: list[Measured], off: list[float]) -> tuple[int, int]:
    """(pairs ranked rightly, pairs) by seconds a step, among rows of one table."""
    right = total = 0
    for (a, x), (b, y) in itertools.combinations(zip(data, off, strict=True), 2):
        if a.table == b.table and a.seconds != b.seconds:
            total += 1
            right += (a.seconds < b.seconds) == (a.seconds * (1 + x) < b.seconds * (1 + y))
    return right, total


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


def halves(stack: str, data: list[Measured], times: int) -> list[float]:
    """Errors of the rows when random halves of a stack predict each other, `times` times."""
    chance, found = np.random.default_rng(0), []
    for _ in range(times):
        order = chance.permutation(len(data))
        for half in (0, 1):
            known = [data[i] for i in order[half::2]]
            values = fit(stack, known)
            near = anchors(stack, known, values)
            asked = [data[i] for i in order[1 - half :: 2]]
            found += [(row, math.exp(error(row, values, near)) - 1) for row in asked]
    return found


def groups_left_out(stack: str, data: list[Measured], of) -> list[tuple[Measured, float]]:
    """Errors when all rows that share of(row) are left out together: a size, a mesh."""
    found = []
    for group in sorted({of(row) for row in data}):
        known = [row for row in data if of(row) != group]
        values = fit(stack, known)
        near = anchors(stack, known, values)
        asked = [row for row in data if of(row) == group]
        found += [(row, math.exp(error(row, values, near)) - 1) for row in asked]
    return found


def never_seen(stack: str, data: list[Measured]) -> list[tuple[Measured, float]]:
    """Errors of a stack by what the other stacks' fits lend and one row's anchor, each in turn."""
    others = [row for row in data if row.stack != stack]
    values, found = borrowed(fit_stacks(others), others) | stacks.given(stack), []
    for table in {row.table for row in data if row.stack == stack}:
        own = [row for row in data if row.table == table]
        off = [error(row, values) for row in own]
        for i, j in itertools.permutations(range(len(own)), 2):
            found.append((own[j], math.exp(off[j] - off[i]) - 1))
    return found


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


def size_of(row: Measured) -> str:
    """The model of a row."""
    shape = row.case.shape
    return f"{shape.hidden} x {shape.layers}" if shape else row.case.image_model


def mesh_of(row: Measured) -> str:
    """How a row's ranks share model and batch."""
    plan = row.case.plan
    return f"tp {plan.tensor} pp {plan.pipeline} dp {plan.data} cp {plan.context}"


def fit_stacks(data: list[Measured]) -> dict[str, dict]:
    """{stack: constants, and the rows that they come from} of those that have constants."""
    found = {}
    for stack, about in stacks.families().items():
        own = [row for row in data if row.stack == stack]
        if own and about["constants"]:
            values = {name: round(value, 9) for name, value in fit(stack, own).items()}
            found[stack] = {"constants": values, "rows": [row.name for row in own]}
    return found


def fit_all(data: list[Measured]) -> dict[str, dict]:
    """The same with anchors, stacks of too few rows, and under "" what one never seen borrows."""
    found = fit_stacks(data)
    lent = borrowed(found, data)
    for stack in stacks.families():
        own = [row for row in data if row.stack == stack]
        if own:
            about = found.setdefault(stack, {"constants": {}, "rows": [row.name for row in own]})
            known = about["constants"] or {**lent, **stacks.families()[stack].get("given", {})}
            near = anchors(stack, own, known)
            about["anchors"] = {name: round(value, 6) for name, value in near.items()}
    return {**found, "": {"constants": lent, "anchors": {}, "rows": []}}


def constants_table(fitted: dict[str, dict]) -> Table:
    """Each constant and anchor with its stack, number of rows, range and meaning."""
    known, lines = stacks.explained(), []
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


def mlsysim_errors(data: list[Measured]) -> dict[str, float] | None:
    """{row: error} by mlsysim's training model, or None where it is not installed."""
    if _version() is None:
        return None
    import rivals

    return {row.name: rivals.mlsysim_seconds(row.case) / row.seconds - 1 for row in data}


def rows_table(data: list[Measured]) -> tuple[Table, Table]:
    """Every row with its error, left out, worst first; and a line for each table."""
    lines, rival = [], mlsysim_errors([row for row in data if row.case.shape])
    for stack in dict.fromkeys(row.stack for row in data):
        own = [row for row in data if row.stack == stack]
        alone = stacks.families()[stack]["constants"] and len(own) > 1  # else nothing is left
        off = left_out(stack, own) if alone else [math.nan] * len(own)
        plain = by_flops(own)
        for row, x, y in zip(own, off, plain, strict=True):
            lines.append(
                {
                    "table": row.table,
                    "row": row.name,
                    "seconds": row.seconds,
                    "predicted": row.seconds * (1 + x),
                    "error %": 100 * x,
                    "one constant %": 100 * y,
                    **({"mlsysim %": 100 * rival.get(row.name, math.nan)} if rival else {}),
                }
            )
    lines.sort(key=lambda line: -abs(line["error %"]) if line["error %"] == line["error %"] else 1)
    return Table(lines, "every row, predicted without it, worst first"), _by_table(data, lines)


def _by_table(data: list[Measured], lines: list[dict]) -> Table:
    off = {line["row"] + line["table"]: line for line in lines}
    found = []
    for table in dict.fromkeys(row.table for row in data):
        own = [row for row in data if row.table == table]
        mine = [off[row.name + table] for row in own]
        errors = [line["error %"] / 100 for line in mine]
        if any(math.isnan(x) for x in errors):
            continue
        right, total = pairs(own, errors)
        plain = [abs(x["one constant %"]) for x in mine if not math.isnan(x["one constant %"])]
        line = {"table": table, **summary(errors)}
        line["pairs ranked rightly %"] = 100 * right / total if total else None
        line["one constant, mean %"] = statistics.mean(plain) if plain else None
        if "mlsysim %" in mine[0]:
            rival = [abs(x["mlsysim %"]) for x in mine if not math.isnan(x["mlsysim %"])]
            line["mlsysim, mean %"] = statistics.mean(rival) if rival else None
        found.append(line)
    return Table(found, "each row left out once")


def harder(data: list[Measured], times: int) -> Table:
    """Halves, whole sizes and whole meshes left out; and stacks as if never seen."""
    lines = []
    for stack in dict.fromkeys(row.stack for row in data):
        own = [row for row in data if row.stack == stack]
        if len(own) < 7:
            continue
        trials = {
            "random halves": halves(stack, own, times),
            "a model's size": groups_left_out(stack, own, size_of),
            "a mesh": groups_left_out(stack, own, mesh_of),
            "all but one row, an anchor": never_seen(stack, data),
        }
        for name, found in trials.items():
            for table in dict.fromkeys(row.table for row in own):
                off = [x for row, x in found if row.table == table]
                if off:
                    lines.append({"left out": name, "table": table, **summary(off)})
    return Table(lines, "harder: what is left out together")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit again, and write fitted.json")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name} too")
    parser.add_argument("--halves", type=int, default=3, help="random halves of each stack")
    chosen = parser.parse_args()
    data = measured()
    if chosen.fit:
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in fit_all(data).items()]
        (stacks.HERE / "fitted.json").write_text("{" + ",\n".join(lines) + "}\n")
        stacks.fitted.cache_clear()
    every, each_table = rows_table(data)
    constants, more = constants_table(stacks.fitted()), harder(data, chosen.halves)
    for shown in (every, constants, more, each_table):
        print(shown, end="\n\n")
    if chosen.record:
        RECORD.write_text(json.dumps(recorded(every, constants, more, each_table), indent=1) + "\n")
    return 0


def recorded(every: Table, constants: Table, more: Table, each_table: Table) -> dict:
    """What is kept of a run: the tables, rounded, and the rival's version."""
    named = {"rows": every, "constants": constants, "harder": more, "tables": each_table}
    kept = {name: [_rounded(row) for row in table.rows] for name, table in named.items()}
    return {"mlsysim": _version(), **kept}


def _rounded(row: dict) -> dict:
    """Four digits, and None for what is not a number."""
    return {
        key: (float(f"{value:.4g}") if math.isfinite(value) else None)
        if isinstance(value, float)
        else value
        for key, value in row.items()
    }


def _version() -> str | None:
    try:
        return importlib.metadata.version("mlsysim")
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
