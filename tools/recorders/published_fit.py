"""Published rows with what they measured, and the fit of the planner's constants to them.

accuracy.py prints what comes of it. Needs scipy.
"""

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bootcamp.costs import fitted_constants, planner, published

TOLERANCE = 0.02  # an error up to it counts squared, a larger one as it is (Huber's loss)
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


Errors = list[tuple[Measured, float]]  # rows, each with its relative error


def measured(names: list[str] = TABLES) -> list[Measured]:
    """Return the rows with a time, a throughput or an MFU, of all tables."""
    found = []
    for table in names:
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
    values = fitted_constants.STACKS[data.stack]["published"] | values
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

    names = fitted_constants.STACKS[stack]["constants"]
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
    known = fitted_constants.STACKS[row.stack]["anchors"]
    return any(key in known for key in fitted_constants.anchor_keys(*_who(row)))


def anchors(stack: str, data: list[Measured], values: dict) -> dict[str, float]:
    """{key of constants.toml's anchors: measured over predicted, the median of its rows}."""
    found = {}
    for key in fitted_constants.STACKS[stack]["anchors"]:
        off = [
            -error(row, values) for row in data if key in fitted_constants.anchor_keys(*_who(row))
        ]
        if off:
            found[key] = math.exp(statistics.median(off))
    return found


def _who(row: Measured) -> tuple[str, str, str]:
    return row.case.stack, row.case.cluster.gpu.name, row.case.method


def predict(stack: str, known: list[Measured], asked: list[Measured]) -> Errors:
    """Return rows with their relative errors by constants that were fitted to the known rows."""
    values = fit(stack, known)
    near = anchors(stack, known, values)
    return [(row, math.exp(error(row, values, near)) - 1) for row in asked]


def leave_out(stack: str, data: list[Measured], groups: list[list[Measured]]) -> Errors:
    """Return the errors of each group of a stack's rows, by constants fitted to its other rows."""
    found = []
    for group in groups:
        out = set(map(id, group))
        found += predict(stack, [row for row in data if id(row) not in out], group)
    return found


def cut_randomly(data: list[Measured], pieces: int) -> list[list[Measured]]:
    """Cut rows into random halves or quarters, twice over."""
    chance = np.random.default_rng(0)
    orders = [chance.permutation(len(data)) for _ in range(2)]
    return [[data[i] for i in order[piece::pieces]] for order in orders for piece in range(pieces)]


def group_by(data: list[Measured], of: Callable) -> list[list[Measured]]:
    """Group the rows that share of(row): a size, a mesh."""
    return [[row for row in data if of(row) == group] for group in sorted(set(map(of, data)))]


def never_seen(stack: str, data: list[Measured]) -> Errors:
    """Errors of a stack by what the other stacks' fits lend and one row's anchor, each in turn."""
    others = [row for row in data if row.stack != stack]
    published_values = fitted_constants.STACKS[stack]["published"]
    values, found = borrowed(fit_stacks(others), others) | published_values, []
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


def fit_stacks(data: list[Measured]) -> dict[str, dict]:
    """{stack: constants, and the rows that they come from} of those that have constants."""
    found = {}
    for stack, about in fitted_constants.STACKS.items():
        own = [row for row in data if row.stack == stack]
        if own and about["constants"]:
            values = {name: round(value, 9) for name, value in fit(stack, own).items()}
            found[stack] = {"constants": values, "rows": [row.name for row in own]}
    return found


def fit_all(data: list[Measured]) -> dict[str, dict]:
    """The same with anchors, stacks of too few rows, and under "" what one never seen borrows."""
    found = fit_stacks(data)
    lent = borrowed(found, data)
    for stack in fitted_constants.STACKS:
        own = [row for row in data if row.stack == stack]
        if own:
            about = found.setdefault(stack, {"constants": {}, "rows": [row.name for row in own]})
            known = about["constants"] or lent | fitted_constants.STACKS[stack]["published"]
            near = anchors(stack, own, known)
            about["anchors"] = {name: round(value, 6) for name, value in near.items()}
    return {**found, "": {"constants": lent, "anchors": {}, "rows": []}}
