"""Lesson 10's tables, by the planner: `forecasts.list_plans("Llama 3 70B", gpus=256)`.

The figures of bootcamp.plots take them. GB are 1e9 bytes. A batch is counted in tokens. The errors
of the planner come from logs/reference/accuracy.json, and logs/README.md says who recorded it.
"""

import csv
import math
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

from bootcamp.costs import failures, fitted_constants, memory, model_shapes, planner, published
from bootcamp.costs.hardware import GB, Cluster, Gpu, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.planner import Workload
from bootcamp.costs.plans import RECOMPUTE, Plan, check, list_candidates
from bootcamp.costs.step import Step
from bootcamp.files import read_json
from bootcamp.launcher.launch import run_command
from bootcamp.paths import REFERENCE
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons import sharding_tables
from bootcamp_lessons.plan_contest import changed_knobs, describe

MODELS = ("Llama 2 7B", "Llama 3 70B", "Llama 3 405B", "Mixtral 8x7B")
GPUS = ("A100 80GB", "H100 80GB", "H200", "B200")
LINKS = {"400 Gbit/s a GPU": 400, "200 Gbit/s a GPU": 200, "50 Gbit/s a GPU": 50}  # GB/s a host
BATCH = 2**22  # tokens of a step
# what is not tried: HSDP; in pictures of all plans, context ranks and interleaving too
NO_ROWS = {"shard": 0, "keep_gathered": False}
FEW = {"context": 1, "virtual": 1, **NO_ROWS}
SETS_IN = 0.1  # of a step: from this share on a part is named as a limit
SLOWER_BY = {
    "host": "launches",
    "tensor": "tensor's collectives",
    "context": "context's collectives",
    "expert": "all-to-all of experts",
    "data": "gradients and parameters",
    "pipeline": "stages' hand-over",
    "bubble": "bubble",
    "optimizer": "optimizer",
}
CONNECTED = ("tensor", "context", "expert", "data", "pipeline")  # parts that wait for links


def find_model(model: str) -> Model:
    """Find a model of the planner's table. Raises ValueError for an unknown name."""
    if (shape := model_shapes.find_model(model)) is None:
        raise ValueError(f"model={model!r}: expected one of {', '.join(list_models())}")
    return shape


def make_cluster(gpus: int, host_gb_s: float = 400, kind: str = "H100 80GB") -> Cluster:
    """Make a cluster with 8 GPUs in a host. host_gb_s: GB/s that a host sends to others."""
    return Cluster(gpu(kind), gpus, host_bytes=host_gb_s * GB)


def list_models() -> list[str]:
    return [row["name"] for row in published.table("models")]


def count_samples(shape: Model, batch: int) -> int:
    """Count the sequences of a batch of tokens, at least one."""
    return max(1, batch // shape.sequence)


# Memory


def memory_by_part(names: Iterable[str] = MODELS, gpus: int = 64) -> Table:
    """Table the memory of the fullest H100 by part, of each model in each of `make_ways(gpus)`."""
    device, lines = gpu("H100 80GB"), []
    for model in names:
        for name, fields in make_ways(gpus).items():
            parts = split_memory_gb(find_model(model), Plan(compile=True, **fields), device)
            line = {"model": model, "plan": name, "peak_gb": sum(parts.values())}
            line |= {f"{part}_gb": size for part, size in parts.items()}
            line["gpu_gb"] = device.memory / GB
            lines.append(line | {"fits": line["peak_gb"] <= line["gpu_gb"]})
    return Table(lines, f"GB on one {device.name}, by formula; a sample of a GPU at a time")


def make_ways(gpus: int) -> dict[str, dict]:
    """Return the plans of memory_by_part; each GPU, or each 8 of a tensor group, has one sample."""
    shared = {"data": gpus, "batch": gpus, "stage": 3}
    split = {"tensor": 8, "sequence_parallel": True, "data": gpus // 8, "batch": gpus // 8}
    return {
        "1 GPU": {},
        f"ZeRO-3 over {gpus}": shared,
        f"ZeRO-3 over {gpus}, recomputed": {**shared, "recompute": "full"},
        f"ZeRO-3 over {gpus // 8} x tensor 8": {**shared, **split},
    }


def split_memory_gb(shape: Model, plan: Plan, device: Gpu) -> dict[str, float]:
    """Split the memory of the fullest rank: parameters, gradients, optimizer, activations, buffers.

    buffers: the loss's scores, what ZeRO-3 has gathered, and what the allocator keeps in reserve.
    """
    held = memory.find_fullest_rank(shape, plan)
    parts = {name: held[name] / GB for name in ("parameters", "gradients", "optimizer")}
    parts["activations"] = (held["activations"] + held.get("recomputed", 0.0)) / GB
    reserved = fitted_constants.find_constants("", device.name).reserved
    return parts | {"buffers": reserved * sum(held.values()) / GB - sum(parts.values())}


# Plans


def name_plan(plan: Plan) -> dict:
    """Return the columns that name a plan in a table."""
    mesh = {name: getattr(plan, name) for name in ("tensor", "context", "pipeline", "data")}
    return mesh | {"ZeRO": plan.stage, "micro-batch": plan.micro_batch, "recompute": plan.recompute}


def predict_plan(shape: Model, cluster: Cluster, plan: Plan) -> dict:
    """Predict a row of `list_plans`. Raises ValueError for an impossible plan."""
    check(shape, cluster, plan)
    answer = planner.predict(shape, cluster, plan)
    return name_plan(plan) | {
        "fits": answer.peak_bytes <= cluster.gpu.memory,
        "peak_gb": answer.peak_bytes / GB,
        "gpu_gb": cluster.gpu.memory / GB,
        "seconds_per_step": answer.seconds,
        "tokens_per_second_per_gpu": answer.tokens,
        "mfu": answer.mfu,
        "limit": answer.limit,
        "slower_by": "",
        "gb": split_memory_gb(shape, plan, cluster.gpu),
        "seconds": answer.parts,
    }


@cache  # the sliders ask again and again for the same cluster's
def list_plans(
    model: str, kind: str = "H100 80GB", gpus: int = 256, batch: int = BATCH, host_gb_s: float = 400
) -> Table:
    """Table every plan of a model on a cluster, those that fit first, the fastest first.

    "slower_by" names what a plan loses most by against the best, "limit" what it waits for most.
    "gb" is {part: GB}, "seconds" {part: of a step}. Raises ValueError if no plan divides the batch.
    """
    shape, cluster = find_model(model), make_cluster(gpus, host_gb_s, kind)
    size = count_samples(shape, batch)
    found = [predict_plan(shape, cluster, p) for p in list_candidates(shape, cluster, size, **FEW)]
    if not found:
        raise ValueError(f"{size:,} samples divide over no mesh of {gpus:,} GPUs")
    where = f"{model} on {gpus:,} x {cluster.gpu.name}, {batch / 1e6:.3g} M tokens a step"
    fitting = sum(row["fits"] for row in found)
    return Table(rank_plans(found), f"{where}: {len(found)} plans, {fitting} fit; predicted")


def rank_plans(plans: list[dict]) -> list[dict]:
    """Sort rows of plans, the best first; add what each loses most by against the best."""
    order = sorted(plans, key=lambda row: (not row["fits"], row["seconds_per_step"]))
    return [row | {"slower_by": _slower_by(row, order[0])} for row in order]


def _slower_by(row: dict, best: dict) -> str:
    if not row["fits"]:
        return "memory"
    lost = {part: row["seconds"][part] - best["seconds"][part] for part in row["seconds"]}
    most = max(lost, key=lost.get)
    if most != "compute":
        return SLOWER_BY[most] if lost[most] > 0 else ""
    more = RECOMPUTE.index(row["recompute"]) > RECOMPUTE.index(best["recompute"])
    return "" if row is best else "recomputation" if more else "smaller products, uneven stages"


def add_plan(
    model: str, kind: str, gpus: int, host_gb_s: float, zero: int, **fields
) -> tuple[Table, dict]:
    """Return `list_plans` with one more plan, as the sliders choose it, and the row of that plan.

    zero: ZeRO's stage. fields: of a Plan, without data. Raises ValueError for an impossible plan.
    """
    shape, cluster = find_model(model), make_cluster(gpus, host_gb_s, kind)
    fields |= {"stage": zero, "batch": count_samples(shape, BATCH), "compile": True}
    plan = Plan(**add_data_ranks(gpus, fields), sequence_parallel=fields["tensor"] > 1)
    table, columns = list_plans(model, kind, gpus, BATCH, host_gb_s), name_plan(plan)
    others = [row for row in table if not columns.items() <= row.items()]
    found = Table(rank_plans([*others, predict_plan(shape, cluster, plan)]), table.caption)
    return found, next(row for row in found if columns.items() <= row.items())


def add_data_ranks(gpus: int, fields: dict) -> dict:
    """Add to the fields of a plan the data ranks that its other axes leave of the GPUs."""
    axes = [fields.get(axis, 1) for axis in ("tensor", "pipeline", "context")]
    split = math.prod(ranks for ranks in axes if isinstance(ranks, int))
    return {"data": max(1, gpus // max(1, split)), **fields}


def grow(
    model: str,
    counts: Iterable[int] = tuple(2**k for k in range(3, 15)),
    batch: int = 2**24,
    host_gb_s: float = 400,
    **given,
) -> Table:
    """Table the fastest plan that fits at each number of GPUs, with the same batch for all.

    given: what to try, as of plans.list_candidates. "shares" is {part: share of the step}, "marks"
    the limits that set in. Where no plan fits, numbers are None and "marks" says why.
    """
    shape = find_model(model)
    size, before, lines = count_samples(shape, batch), set(), []
    for gpus in counts:
        cluster = make_cluster(gpus, host_gb_s)
        line = {"GPUs": gpus, "samples_per_gpu": size / gpus}
        found = planner.search(shape, cluster, size, **NO_ROWS | given)
        if not found:
            some = any(list_candidates(shape, cluster, size, **given))
            why = "no plan fits the memory" if some else "no plan divides the batch"
            lines.append(line | dict.fromkeys(COLUMNS_OF_PLAN) | {"shares": {}, "marks": [why]})
            continue
        plan = found[0][0]
        row = predict_plan(shape, cluster, plan)
        seconds = row["seconds"] | {"latency": latency_seconds(shape, cluster, plan)}
        shares = {part: each / row["seconds_per_step"] for part, each in seconds.items()}
        limits = _limits(shares, size / gpus)
        line |= {name: row[name] for name in COLUMNS_OF_PLAN}
        lines.append(line | {"shares": shares, "marks": sorted(limits - before)})
        before |= limits
    name = f"{model}, {batch / 1e6:.3g} M tokens a step on {cluster.gpu.name}"
    return Table(lines, f"{name}: the fastest plan that fits, predicted")


COLUMNS_OF_PLAN = ("tensor", "pipeline", "data", "ZeRO", "micro-batch", "recompute", "peak_gb")
COLUMNS_OF_PLAN += ("seconds_per_step", "tokens_per_second_per_gpu", "mfu", "limit", "context")


def latency_seconds(shape: Model, cluster: Cluster, plan: Plan) -> float:
    """Predict the seconds of a step's collectives on links of infinite bandwidth."""
    wide = replace(cluster.gpu, bus=math.inf)
    free = replace(cluster, gpu=wide, host_bytes=math.inf)
    parts = Step(shape, free, plan, fitted_constants.find_constants("", cluster.gpu.name)).parts()
    return sum(parts[part] for part in CONNECTED)


def _limits(shares: dict[str, float], samples_per_gpu: float) -> set[str]:
    """Return those of latency, links, bubble and launches that cost a step more than SETS_IN.

    And "batch", if there is less than a sample for each GPU to divide by data parallelism alone.
    """
    costs = {"latency": shares["latency"], "bubble": shares["bubble"], "launches": shares["host"]}
    costs["links"] = sum(shares[part] for part in CONNECTED) - shares["latency"]
    found = {name for name, share in costs.items() if share > SETS_IN}
    return found | ({"batch"} if samples_per_gpu < 1 else set())


# Published runs

LARGE = ("llama3_table4", "megascale", "mtnlg_530b")
SIZES = {"1 to 8": 8, "to 64": 64, "to 512": 512, "above": math.inf}
PUBLISHED = {
    "vtrain_single": "vTrain, 1 host",
    "vtrain_multi": "vTrain, 8 to 64 hosts",
    "mosaicml_mpt": "MosaicML, FSDP",
    "ptdp_table1": "Megatron-LM 2021",
    "ptdp_table2_zero3": "Megatron-LM 2021, ZeRO-3",
    "korthikanti_table4_layer": "Megatron-LM 2022, a layer",
    "korthikanti_table5": "Megatron-LM 2022",
    "megascale": "MegaScale",
    "mtnlg_530b": "MT-NLG",
    "torchtitan": "torchtitan",
    "ibm_fsdp_hsdp": "IBM, FSDP and HSDP",
    "llama3_table4": "Llama 3",
    "megatron_bridge_h100": "Megatron Bridge",
    "tf_cnn_benchmarks": "TensorFlow, images",
    "hf_dp_vs_ddp": "Hugging Face, DDP",
}


def published_beside_predicted() -> Table:
    """Table published seconds beside those predicted by a fit without that row, worst first."""
    lines = []
    for row in list_predicted_rows():
        case = read_published_row(row["table"], row["row"])
        line = {"run": _name_run(case), "GPUs": case.cluster.gpus}
        line |= {"published by": PUBLISHED[row["table"]], "published_seconds": row["seconds"]}
        line |= {"predicted_seconds": row["predicted"], "error %": row["error %"]}
        lines.append(line | {"table": row["table"], "row": row["row"]})
    lines.sort(key=lambda line: -abs(line["error %"]))
    return Table(lines, "seconds of a step, published and predicted without that row")


def read_published_row(table: str, row_id: str) -> Workload:
    """Read a published row as the planner does. Raises StopIteration for an unknown one."""
    return planner.read(next(row for row in published.table(table) if row["row_id"] == row_id))


def _name_run(case: Workload) -> str:
    plan = case.plan
    size = case.network["model"] if case.network else f"{case.shape.parameters / 1e9:.3g} B"
    axes = {"TP": plan.tensor, "PP": plan.pipeline, "CP": plan.context, "DP": plan.data}
    mesh = " ".join(f"{name}{ranks}" for name, ranks in axes.items() if ranks > 1)
    return f"{size}, {mesh or '1 GPU'} {case.cluster.gpu.name.split()[0]}"


def checkpoint_intervals(
    counts: Iterable[int] = (1024, 4096, 16384, 65536), save: float = 60, restart: float = 600
) -> Table:
    """Table how often to save on GPUs as reliable as Llama 3's; save, restart: seconds."""
    lines = []
    for gpus in counts:
        between = failures.mtbf_seconds(gpus)
        best = failures.daly_interval(save, between)
        share = failures.effective_share(best, save, between, restart)
        line = {"GPUs": gpus, "between_failures_seconds": between, "save_seconds": save}
        line |= {"restart_seconds": restart, "best_interval_seconds": best}
        lines.append(line | {"effective_share": share})
    return Table(lines, "GPUs as reliable as those of Llama 3 405B; best interval by Daly (2006)")


def ask_in_shell(text: str, columns: dict[str, str]) -> Table:
    """Ask `python -m bootcamp.plan < plans.csv` about plans; columns: {its name: head here}."""
    with tempfile.TemporaryDirectory() as folder:
        plans = Path(folder) / "plans.csv"
        plans.write_text(text)
        command = f"'{sys.executable}' -m bootcamp.plan < '{plans}'"
        answered = list(csv.DictReader(run_command(["sh", "-c", command]).splitlines()))
    shown = [{head: _number(row[name]) for name, head in columns.items()} for row in answered]
    return Table(shown, "python -m bootcamp.plan < plans.csv, some of its columns")


def _number(text: str) -> int | float | str | None:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text or None


def compare_counted(run: Run, states: float, sent: float) -> dict:
    """Compare what rank 0 of a run holds and sends in a step with the prediction."""
    row = {"strategy": run.strategy, "states, predicted": states}
    row |= {"states, counted": sharding_tables.state_bytes(run), "sent, predicted": sent}
    return row | {"sent, counted": run.ranks[0].sent_bytes_per_step}


def explain_plans(plans: list[dict]) -> Table:
    """Table rows of list_plans: their memory, their time, and the part that they wait for most."""

    def waits(plan: dict) -> str | None:
        most = max(planner.WORDS, key=plan["seconds"].get)
        share = 100 * plan["seconds"][most] / plan["seconds_per_step"]
        return f"{planner.WORDS[most]}, {share:.0f} %" if share >= 0.5 else None

    columns = {name: name for name in COLUMNS_OF_PLAN[:6]}
    columns |= {"GB": "peak_gb", "s": "seconds_per_step"}
    columns["computes, %"] = lambda p: 100 * p["seconds"]["compute"] / p["seconds_per_step"]
    columns["waits most for"] = waits
    return Table.of(plans, columns, "Seconds of a step and what takes them, predicted")


def tabulate_sizes(names: tuple[str, ...]) -> Table:
    """Table the parameters of models, and those that a token passes through."""
    columns = {
        "model": lambda name: name,
        "parameters, billion": lambda name: find_model(name).parameters / 1e9,
        "a token passes through, billion": lambda name: find_model(name).matrix_parameters / 1e9,
        "states, TB": lambda name: 16 * find_model(name).parameters / 1e12,
    }
    return Table.of(names, columns, "AdamW in mixed precision: 16 bytes for each parameter")


def tabulate_effective_time(gpus: tuple[int, ...] = (16384, 65536)) -> Table:
    """Table the share of time that counts, for saves and restarts of a minute, or more, or less."""
    shown = []
    for save, restart in ((60, 600), (6, 600), (60, 60), (6, 60)):
        line = {"a save, s": save, "a restart, s": restart}
        for row in checkpoint_intervals(gpus, save, restart):
            line[f"{row['GPUs']:,} GPUs, %"] = 100 * row["effective_share"]
        between = row["between_failures_seconds"]
        lost = failures.lost_share(failures.young_interval(save, between), save, between, restart)
        shown.append(line | {f"{row['GPUs']:,}, Young's formula, %": 100 * (1 - lost)})
    return Table(shown, "Share of the time that trains, by formula; saved at the best interval")


# How wrong the planner is


def read_accuracy() -> dict:
    """Read the record of the planner's errors."""
    return read_json(REFERENCE / "accuracy.json")


def list_predicted_rows() -> list[dict]:
    """List the published rows, each predicted by constants fitted without it."""
    return read_accuracy()["rows"]


def errors_by_size() -> Table:
    """Table the errors by number of GPUs, of rows to which no constant was fitted."""
    known, rows, least = [r for r in list_predicted_rows() if r["half"] != "fitted"], [], 0
    counts = [read_published_row(r["table"], r["row"]).cluster.gpus for r in known]
    for name, most in SIZES.items():
        pairs = zip(known, counts, strict=True)
        off = [abs(row["error %"]) for row, gpus in pairs if least < gpus <= most]
        row, least = {"GPUs": name, "published runs": len(off), "mean error %": fmean(off)}, most
        rows.append(row | {"median %": median(off), "largest %": max(off)})
    return Table(rows, "Seconds of a step, predicted by constants fitted without the run")


def runs_at_scale() -> Table:
    """Table runs on thousands of GPUs beside their predictions; best: the fastest plan found."""
    rows = []
    for given in (row for table in LARGE for row in published.table(table)):
        case = planner.read(given)
        found = planner.answer(replace(case, stack=""))
        work = 100 * found.mfu * found.seconds  # of the step, in % of the peak
        mfu = float(given.get("published_mfu_percent") or work / float(given["published_seconds"]))
        size = case.plan.batch
        (best, fastest), *_ = planner.search(case.shape, case.cluster, size, **NO_ROWS)
        lost = {part: found.parts[part] / found.seconds for part in planner.WORDS}
        most = max(lost, key=lost.get)
        row = {"run": given.get("method") or PUBLISHED[given["stack"]], "GPUs": case.cluster.gpus}
        row |= {"tokens of a sample": case.shape.sequence, "mesh": _name_run(case)}
        row |= {"published MFU %": mfu, "predicted MFU %": 100 * found.mfu}
        row |= {"error %": 100 * (mfu / 100 / found.mfu - 1)}
        row["waits most for"] = f"{planner.WORDS[most]}, {100 * lost[most]:.0f} %"
        rows.append(row | {"best MFU %": 100 * fastest.mfu, "best": describe(changed_knobs(best))})
    return Table(rows, "Large runs, predicted as those of a stack never seen")


def price_trainings(
    model: str, tokens: float, counts: Iterable[int], batch: int = 2**24, kind: str = "H100 80GB"
) -> Table:
    """Table the fastest plan at each number of GPUs: days of the training, hours, price, energy."""
    shape, rows = find_model(model), []
    for gpus in counts:
        cluster = make_cluster(gpus, kind=kind)
        for plan, found in planner.search(shape, cluster, count_samples(shape, batch), **NO_ROWS):
            more = planner.surround(Workload("", cluster, plan, shape, tokens=tokens), found)
            row = {"GPUs": gpus, "plan": describe(changed_knobs(plan)), "MFU %": 100 * found.mfu}
            row |= {name: more[name] for name in ("days", "gpu_hours", "dollars", "mwh")}
            ends = (more["days"] * more[end] / found.seconds for end in ("low", "high"))
            rows.append(row | dict(zip(("days, low", "days, high"), ends, strict=True)))
    about = f"{model}, {tokens / 1e12:g} trillion tokens on {kind}, saves and failures included"
    return Table(rows, f"{about}; 80 % intervals, by the planner")


def count_ranked_pairs() -> tuple[float, int]:
    """Count the pairs of rows of one table that the planner ranks correctly, and all such pairs."""
    key = "pairs ranked correctly %"
    known = [row for row in read_accuracy()["tables"] if row[key] is not None]
    pairs = [row["rows"] * (row["rows"] - 1) // 2 for row in known]
    return sum(n * row[key] / 100 for n, row in zip(pairs, known, strict=True)), sum(pairs)


def tabulate_constants(stack: str) -> Table:
    """Table the constants that were fitted for a stack and for all, and what each means."""
    found, tables = read_accuracy(), fitted_constants.STACKS[stack]["tables"]
    rows = [row for row in found["constants"] if row["stack"] in (stack, "all")]
    columns = {name: name for name in ("constant", "stack", "value", "unit", "range", "is")}
    runs = [row["table"] in tables for row in found["rows"] if row["half"] == "fitted"]
    return Table.of(rows, columns, f"Fitted to {len(runs)} published runs, {sum(runs)} of {stack}")
