"""What lesson 10 asks the planner in a shell, and what is known about how wrong the planner is.

`planning_lab.from_shell(text, columns)` runs `python -m bootcamp.plan`; the rest are tables from
logs/reference/accuracy.json, which `make accuracy ARGS=--record` writes, and from published rows.
"""

import csv
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from bootcamp.costs import failures, fitted_constants, model_shapes, plan_table, planner, published
from bootcamp.costs.hardware import GB, GIB
from bootcamp.files import read_json
from bootcamp.launcher.launch import run_command
from bootcamp.paths import REFERENCE
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons import planning

LIMITS = ("links", "bubble", "launches", "batch")
ERRORS = {"planner": "error %", "one constant": "one constant %", "mlsysim": "mlsysim %"}


def from_shell(text: str, columns: list[str]) -> Table:
    """What `python -m bootcamp.plan < plans.csv` answers to a table of plans, these columns."""
    with tempfile.TemporaryDirectory() as folder:
        plans = Path(folder) / "plans.csv"
        plans.write_text(text)
        command = f"'{sys.executable}' -m bootcamp.plan < '{plans}'"
        answered = list(csv.DictReader(run_command(["sh", "-c", command]).splitlines()))
    shown = [{name: _number(row[name]) for name in columns} for row in answered]
    return Table(shown, "python -m bootcamp.plan < plans.csv, some of its columns")


def _number(text: str):
    try:
        return float(text) if not text.isdigit() else int(text)
    except ValueError:
        return text or None


def beside(run: Run, states: float, sent: float) -> dict:
    """What a run's rank 0 holds and sends in a step, counted, beside what was predicted."""
    first = run.ranks[0]
    counted = sum(first[f"{kind}_bytes"] for kind in ("parameter", "gradient", "optimizer"))
    row = {"strategy": run.strategy, "states, predicted": states, "states, counted": counted}
    return row | {"sent, predicted": sent, "sent, counted": first["sent_bytes_per_step"]}


def why(plans: list[dict]) -> Table:
    """Rows of planning.plans_of: what they hold, how long they take, and on what they wait most."""

    def waits(plan: dict) -> str | None:
        most = max(planner.WORDS, key=plan["seconds"].get)
        share = 100 * plan["seconds"][most] / plan["seconds_per_step"]
        return f"{planner.WORDS[most]}, {share:.0f} %" if share >= 0.5 else None

    columns = {name: name for name in planning.COLUMNS_OF_PLAN[:6]}
    columns |= {"GB": "peak_gb", "s": "seconds_per_step"}
    columns["computes, %"] = lambda p: 100 * p["seconds"]["compute"] / p["seconds_per_step"]
    columns["waits most for"] = waits
    return Table.of(plans, columns, "Seconds of a step and what takes them, predicted")


def stages(kinds: Table, which: tuple[int, ...]) -> Table:
    """Some stages of traffic.kinds, in GB."""
    columns = {
        "stage": "stage",
        "ranks": "ranks",
        "optimizer, GB": _gb("optimizer_bytes"),
        "activations, GB": _gb("activations_bytes"),
        "peak, GB": _gb("peak_bytes"),
        "sent in its host, GB": _gb("sent_inside_bytes"),
        "to other hosts, GB": _gb("sent_between_bytes"),
    }
    caption = "A rank of some stages: what it holds, and sends in a step, by formula"
    return Table.of([kinds[stage] for stage in which], columns, caption)


def _gb(column: str) -> Callable[[dict], float]:
    return lambda row: row[column] / GB


def sizes(names: tuple[str, ...]) -> Table:
    """Parameters of models, and those that a token passes through."""
    columns = {
        "model": lambda name: name,
        "parameters, billion": lambda name: model_shapes.named(name).parameters / 1e9,
        "a token passes through, billion": lambda name: model_shapes.named(name).computed / 1e9,
        "states, TB": lambda name: 16 * model_shapes.named(name).parameters / 1e12,
    }
    return Table.of(names, columns, "AdamW in mixed precision: 16 bytes for each parameter")


def sets_in(cases: dict[str, Table]) -> Table:
    """From how many GPUs on each limit costs, in tables of planning.grown by their model."""
    shown = []
    for model, growth in cases.items():
        known = [row for row in growth if row["mfu"]]
        first, last = known[0], known[-1]
        tokens = first["tokens_per_second_per_gpu"] * first["GPUs"] * first["seconds_per_step"]
        line = {"model": model, "million tokens a step": tokens / 1e6, "fits from": first["GPUs"]}
        for name in LIMITS:
            line[name] = next((row["GPUs"] for row in growth if name in row["marks"]), None)
        line["latency at most, %"] = 100 * max(row["shares"]["latency"] for row in known)
        beyond = None if last is growth[-1] else last["GPUs"]
        shown.append(line | {"last that divide the batch": beyond})
    caption = f"GPUs from which on a limit takes over {planning.SETS_IN:.0%} of a step"
    return Table(shown, f"{caption}; batch: more GPUs than sequences")


def what_counts(gpus: tuple[int, ...] = (16384, 65536)) -> Table:
    """Share of the time that counts, for saves and restarts of a minute or more, or less."""
    shown = []
    for save, restart in ((60, 600), (6, 600), (60, 60), (6, 60)):
        line = {"a save, s": save, "a restart, s": restart}
        for count in gpus:
            between = failures.between_failures(count)
            best = failures.daly(save, between)
            share = failures.effective_share(best, save, between, restart)
            line[f"{count:,} GPUs, %"] = 100 * share
        lost = failures.lost_share(failures.young(save, between), save, between, restart)
        shown.append(line | {f"{count:,} by Young, %": 100 * (1 - lost)})
    return Table(shown, "Time that counts, saved at the best interval, by formula")


# How wrong the planner is


def recorded() -> dict:
    """What `make accuracy` has recorded."""
    return read_json(REFERENCE / "accuracy.json")


def by_table() -> Table:
    """Errors of each published table, every row predicted by constants fitted without it."""
    found, shown = recorded(), []
    for row in found["tables"]:
        own = [r for r in found["rows"] if r["table"] == row["table"]]
        line = {"published by": planning.PUBLISHED[row["table"]], "rows": len(own)}
        line["largest %"] = max(abs(r["error %"]) for r in own)
        line["pairs ranked rightly %"] = row["pairs ranked rightly %"]
        for name, key in ERRORS.items():
            known = [abs(r[key]) for r in own if r[key] is not None]
            line[f"{name}, mean %"] = fmean(known) if known else None
        shown.append(line)
    return Table(
        shown, f"Errors in seconds of a step, each row left out once; mlsysim {found['mlsysim']}"
    )


def mean_errors() -> dict[str, float]:
    """{"planner", "one constant", "mlsysim"}: mean error in % over the rows that all three have."""
    all_three = [r for r in recorded()["rows"] if None not in [r[key] for key in ERRORS.values()]]
    return {name: fmean(abs(row[key]) for row in all_three) for name, key in ERRORS.items()}


def ranked() -> tuple[float, int]:
    """Pairs of rows of one table that the planner ranks rightly, and all such pairs."""
    key = "pairs ranked rightly %"
    known = [row for row in recorded()["tables"] if row[key] is not None]
    pairs = [row["rows"] * (row["rows"] - 1) // 2 for row in known]
    return sum(n * row[key] / 100 for n, row in zip(pairs, known, strict=True)), sum(pairs)


def worst(most: int = 8) -> Table:
    """The rows that are furthest off, with what may explain them."""

    def plan(row: dict):
        return planning.published_row(row["table"], row["row"]).plan

    columns = {
        "row": "row",
        "GPUs": lambda row: plan(row).ranks,
        "pipeline": lambda row: plan(row).pipeline,
        "micro-batches for each stage": lambda row: plan(row).micro_batches / plan(row).pipeline,
        "published s": "seconds",
        "predicted s": "predicted",
        "error %": "error %",
        "mlsysim %": "mlsysim %",
    }
    known = [row for row in recorded()["rows"] if row["error %"] is not None]
    caption = "The worst rows, each predicted by constants fitted without it"
    return Table.of(known[:most], columns, caption)


def left_out(names: tuple[str, ...] = ("vtrain_multi", "mosaicml_mpt", "torchtitan")) -> Table:
    """Errors when more than one row is kept from the fit."""
    found, shown = recorded(), []
    kinds = dict.fromkeys(row["left out"] for row in found["harder"])
    for table in names:
        own = {row["left out"]: row["mean %"] for row in found["harder"] if row["table"] == table}
        one = next(row["mean %"] for row in found["tables"] if row["table"] == table)
        shown.append({"published by": planning.PUBLISHED[table], "one row": one, **kinds, **own})
    return Table(shown, "Mean error in %, by what was kept from the fit")


def unseen() -> Table:
    """Twenty runs on a recorded machine: each was predicted before it ran."""
    found = read_json(REFERENCE / "unseen.json")
    machine = found["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, torch {found['versions']['torch']}"
    columns = {
        "strategy": "strategy",
        "model": "model",
        "batch": "global_batch",
        "predicted ms": lambda row: 1e3 * row["predicted_seconds"],
        "measured ms": lambda row: 1e3 * row["measured"]["median"],
        "error %": lambda row: 100 * row["error"],
    }
    caption = f"A step, recorded on {where}; settings drawn by seed {found['seed']}"
    return Table.of(found["rows"], columns, caption)


def held_out(row_id: str) -> dict:
    """{"seconds", "predicted", "error %", ...} of a recorded row. Raises StopIteration."""
    return next(row for row in recorded()["rows"] if row["row"] == row_id)


def peaks() -> Table:
    """Predicted peak memory beside what torchtitan's rows measured."""
    shown = []
    for row in published.table("torchtitan"):
        if row["published_peak_gib"]:
            run = f"{row['model']}, {row['published_techniques']}, {row['sequence_length']} tokens"
            measured = float(row["published_peak_gib"])
            found = planner.answer(plan_table.read(row)).peak_bytes / GIB
            line = {"run": run, "published GiB": measured, "predicted GiB": found}
            shown.append(line | {"error %": 100 * (found / measured - 1)})
    reserve = fitted_constants.explained()["reserved"]["default"] - 1
    return Table(shown, f"Peak memory of a GPU: by formula, and {reserve:.0%} for the allocator")


def llama_peaks() -> Table:
    """Llama 3 405B's published mesh with one, two and four stages on each rank."""
    (row,) = published.table("llama3_table4")
    shown = []
    for virtual in (1, 2, 4):
        found = planner.answer(plan_table.read({**row, "virtual": str(virtual)}))
        line = {"stages on a rank": virtual, "peak, GB": found.peak_bytes / GB}
        shown.append(line | {"seconds": found.seconds, "bubble, s": found.parts["bubble"]})
    return Table(shown, "Llama 3 405B on 8,192 H100s of 80 GB, predicted")


def constants(stack: str) -> Table:
    """What was fitted for a stack, and what each constant means."""
    plan_table = [row for row in recorded()["constants"] if row["stack"] == stack]
    tables = fitted_constants.families()[stack]["tables"]
    names = "; ".join(planning.PUBLISHED[name] for name in tables if name in planning.PUBLISHED)
    columns = {name: name for name in ("constant", "value", "range", "is")}
    caption = f"Fitted to {plan_table[0]['rows of the stack']} published runs: {names}"
    return Table.of(plan_table, columns, caption)
