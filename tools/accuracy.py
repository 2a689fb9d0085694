"""python tools/accuracy.py [--fit] [--halves N]

How wrong the planner is on published rows: each with its error, worst first, predicted by constants
that were fitted without it. Below them the constants, with the rows that each had; the same rows by
one fitted constant, seconds = c x FLOPs, and by mlsysim where it is installed. --fit fits the
constants again and writes src/bootcamp/plan/fitted.json. --halves: how many times each stack is cut
into random halves, one of which predicts the other. numpy.
"""

import argparse
import importlib.util
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

TOLERANCE = 0.04  # an error up to it counts squared, a larger one as it is (Huber's loss)
BELIEF = 8  # a constant's range is so many standard deviations of what is believed before
TABLES = (
    "vtrain_single vtrain_multi mosaicml_mpt ptdp_table1 ptdp_table2_zero3 korthikanti_table5 "
    "korthikanti_table4_layer megascale mtnlg_530b torchtitan ibm_fsdp_hsdp llama3_table4 "
    "megatron_bridge_h100 tf_cnn_benchmarks horovod hf_dp_vs_ddp"
).split()


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
    """The planner's constants for a row from values at hand."""
    return stacks.of(values, anchors, *_who(data))


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
    about = [stacks.explained()[name.partition(" ")[0]] for name in names]
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
    each = [
        math.log(row.seconds / _flops(row)) if row.case.shape else math.nan for row in data
    ]
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
