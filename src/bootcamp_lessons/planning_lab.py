"""What lesson 10 asks the planner in a shell, and what is known about how wrong the planner is.

`planning_lab.from_shell(text, columns)` runs `python -m bootcamp.plan`; the rest are tables from
logs/reference/accuracy.json, which `make accuracy ARGS=--record` writes, and from published rows.
"""

import csv
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from bootcamp.costs import failures, model_shapes, predict, rows, stacks
from bootcamp.costs.hardware import GB, GIB
from bootcamp.costs.published import table as published_table
from bootcamp.files import read_json
from bootcamp.launcher.launch import run_command
from bootcamp.paths import REFERENCE
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons import planning

LIMITS = ("links", "bubble", "launches", "batch")


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
    shown = []
    for plan in plans:
        names = ("tensor", "pipeline", "data", "ZeRO", "micro-batch", "recompute")
        line = {name: plan[name] for name in names} | {"GB": plan["peak_gb"]}
        seconds = plan["seconds_per_step"]
        line |= {"s": seconds, "computes, %": 100 * plan["seconds"]["compute"] / seconds}
        most = max(predict.WORDS, key=plan["seconds"].get)
        waits = 100 * plan["seconds"][most] / seconds
        said = f"{predict.WORDS[most]}, {waits:.0f} %" if waits >= 0.5 else None
        shown.append(line | {"waits most for": said})
    return Table(shown, "Seconds of a step and what takes them, predicted")


def stages(kinds: Table, which: tuple[int, ...]) -> Table:
    """Some stages of traffic.kinds, in GB."""
    shown = []
    for row in [kinds[stage] for stage in which]:
        line = {"stage": row["stage"], "ranks": row["ranks"]}
        for name in ("optimizer", "activations", "peak"):
            line[f"{name}, GB"] = row[f"{name}_bytes"] / GB
        line["sent in its host, GB"] = row["sent_inside_bytes"] / GB
        shown.append(line | {"to other hosts, GB": row["sent_between_bytes"] / GB})
    return Table(shown, "A rank of some stages: what it holds, and sends in a step, by formula")


def recorded() -> dict:
    """What `make accuracy` has recorded."""
    return read_json(REFERENCE / "accuracy.json")


def by_table() -> Table:
    """Errors of each published table, every row predicted by constants fitted without it."""
    shown = []
    for row in recorded()["tables"]:
        of = [r for r in recorded()["rows"] if r["table"] == row["table"]]
        line = {"published by": planning.PUBLISHED[row["table"]], "rows": len(of)}
        line["largest %"] = max(abs(r["error %"]) for r in of)
        line["pairs ranked rightly %"] = row["pairs ranked rightly %"]
        names = {"planner": "error %", "one constant": "one constant %", "mlsysim": "mlsysim %"}
        for name, key in names.items():
            known = [abs(r[key]) for r in of if r[key] is not None]
            line[f"{name}, mean %"] = fmean(known) if known else None
        shown.append(line)
    version = recorded()["mlsysim"]
    return Table(shown, f"Errors in seconds of a step, each row left out once; mlsysim {version}")


def mean_errors() -> dict[str, float]:
    """{"planner", "one constant", "mlsysim"}: mean error in % over the rows that all three have."""
    names = {"planner": "error %", "one constant": "one constant %", "mlsysim": "mlsysim %"}
    all_three = [r for r in recorded()["rows"] if None not in [r[n] for n in names.values()]]
    return {name: fmean(abs(row[n]) for row in all_three) for name, n in names.items()}


def ranked() -> tuple[float, int]:
    """Pairs of rows of one table that the planner ranks rightly, and all such pairs."""
    right, pairs = 0.0, 0
    for row in recorded()["tables"]:
        if row["pairs ranked rightly %"] is not None:
            count = row["rows"] * (row["rows"] - 1) // 2
            pairs += count
            right += count * row["pairs ranked rightly %"] / 100
    return right, pairs


def worst(most: int = 8) -> Table:
    """The rows that are furthest off, with what may explain them."""
    shown = []
    for row in [r for r in recorded()["rows"] if r["error %"] is not None][:most]:
        case = published(row["table"], row["row"])
        line = {"row": row["row"], "GPUs": case.cluster.gpus, "pipeline": case.plan.pipeline}
        line |= {"micro-batches for each stage": case.plan.micro_batches / case.plan.pipeline}
        line |= {"published s": row["seconds"], "predicted s": row["predicted"]}
        shown.append(line | {"error %": row["error %"], "mlsysim %": row["mlsysim %"]})
    return Table(shown, "The worst rows, each predicted by constants fitted without it")


def left_out(names: tuple[str, ...] = ("vtrain_multi", "mosaicml_mpt", "torchtitan")) -> Table:
    """Errors when more than one row is kept from the fit."""
    harder = recorded()["harder"]
    kinds = dict.fromkeys(row["left out"] for row in harder)
    shown = []
    for table in names:
        of = {row["left out"]: row["mean %"] for row in harder if row["table"] == table}
        one = next(row["mean %"] for row in recorded()["tables"] if row["table"] == table)
        line = {"published by": planning.PUBLISHED[table], "one row": one}
        shown.append(line | {kind: of.get(kind) for kind in kinds})
    return Table(shown, "Mean error in %, by what was kept from the fit")


def unseen() -> Table:
    """Twenty runs on a recorded machine: each was predicted before it ran."""
    found = read_json(REFERENCE / "unseen.json")
    shown = [
        {
            "strategy": row["strategy"],
            "model": row["model"],
            "batch": row["global_batch"],
            "predicted ms": 1e3 * row["predicted_seconds"],
            "measured ms": 1e3 * row["measured"]["median"],
            "error %": 100 * row["error"],
        }
        for row in found["rows"]
    ]
    machine = found["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, torch {found['versions']['torch']}"
    return Table(shown, f"A step, recorded on {where}; settings drawn by seed {found['seed']}")


def published(table: str, row_id: str) -> rows.Workload:
    """A published row as the planner reads it. Raises StopIteration for one that is not there."""
    row = next(row for row in published_table(table) if row["row_id"] == row_id)
    return rows.read(row)


def held_out(row_id: str) -> dict:
    """{"seconds", "predicted", "error %", ...} of a recorded row. Raises StopIteration."""
    return next(row for row in recorded()["rows"] if row["row"] == row_id)


def peaks() -> Table:
    """Predicted peak memory beside what torchtitan's rows measured."""
    shown = []
    for row in published_table("torchtitan"):
        if row["published_peak_gib"]:
            case = rows.read(row)
            run = f"{row['model']}, {row['published_techniques']}, {row['sequence_length']} tokens"
            line = {"run": run}
            found = predict.answer(case).peak_bytes / GIB
            measured = float(row["published_peak_gib"])
            line |= {"published GiB": measured, "predicted GiB": found}
            shown.append(line | {"error %": 100 * (found / measured - 1)})
    reserve = stacks.defaults().reserved - 1
    return Table(shown, f"Peak memory of a GPU: by formula, and {reserve:.0%} for the allocator")


def llama_peaks() -> Table:
    """Llama 3 405B's published mesh with one, two and four stages on each rank."""
    (row,) = published_table("llama3_table4")
    shown = []
    for virtual in (1, 2, 4):
        case = rows.read({**row, "virtual": str(virtual)})
        found = predict.answer(case)
        line = {"stages on a rank": virtual, "peak, GB": found.peak_bytes / GB}
        shown.append(line | {"seconds": found.seconds, "bubble, s": found.parts["bubble"]})
    return Table(shown, "Llama 3 405B on 8,192 H100s of 80 GB, predicted")


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


def constants(stack: str) -> Table:
    """What was fitted for a stack, and what each constant means."""
    rows = [row for row in recorded()["constants"] if row["stack"] == stack]
    keys = ("constant", "value", "range", "is")
    caption = f"Fitted to {rows[0]['rows of the stack']} published runs: " + "; ".join(
        planning.PUBLISHED[name]
        for name in stacks.families()[stack]["tables"]
        if name in planning.PUBLISHED
    )
    return Table([{key: row[key] for key in keys} for row in rows], caption)


def sets_in(cases: dict[str, Table]) -> Table:
    """From how many GPUs on each limit costs, in tables of planning.grown by their model."""
    shown = []
    for model, growth in cases.items():
        tokens = next(
            r["tokens_per_second_per_gpu"] * r["GPUs"] * r["seconds_per_step"]
            for r in growth
            if r["mfu"]
        )
        line = {"model": model, "million tokens a step": tokens / 1e6}
        fits = min(row["GPUs"] for row in growth if row["mfu"])
        line |= {"fits from": fits}
        for name in LIMITS:
            line[name] = next((row["GPUs"] for row in growth if name in row["marks"]), None)
        largest = max(row["GPUs"] for row in growth if row["mfu"])
        latency = max(row["shares"].get("latency", 0) for row in growth)
        line["latency at most, %"] = 100 * latency
        beyond = None if largest == growth[-1]["GPUs"] else largest
        shown.append(line | {"last that divide the batch": beyond})
    caption = f"GPUs from which on a limit takes over {planning.SETS_IN:.0%} of a step"
    return Table(shown, f"{caption}; batch: more GPUs than sequences")


def sizes(names: tuple[str, ...]) -> Table:
    """Parameters of models, and those that a token passes through."""
    shown = []
    for name in names:
        shape = model_shapes.named(name)
        line = {"model": name, "parameters, billion": shape.parameters / 1e9}
        line |= {"a token passes through, billion": shape.computed / 1e9}
        shown.append(line | {"states, TB": 16 * shape.parameters / 1e12})
    return Table(shown, "AdamW in mixed precision: 16 bytes for each parameter")
