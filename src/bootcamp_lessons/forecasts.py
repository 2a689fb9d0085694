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
from statistics import fmean

from bootcamp.costs import failures, fitted_constants, memory, model_shapes, planner, published
from bootcamp.costs.hardware import GB, GIB, Cluster, Gpu, gpu
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

MODELS = ("Llama 2 7B", "Llama 3 70B", "Llama 3 405B", "Mixtral 8x7B")
GPUS = ("A100 80GB", "H100 80GB", "H200", "B200")
LINKS = {"400 Gbit/s a GPU": 400, "200 Gbit/s a GPU": 200, "50 Gbit/s a GPU": 50}  # GB/s a host
BATCH = 2**22  # tokens of a step
# what a table of all plans leaves out, so that a picture can show them
FEW = {"context": 1, "virtual": 1, "shard": 0, "keep_gathered": False}
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
LIMITS = ("links", "bubble", "launches", "batch")
ERRORS = {"planner": "error %", "one constant": "one constant %", "mlsysim": "mlsysim %"}
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
    mesh = {"tensor": plan.tensor, "pipeline": plan.pipeline, "data": plan.data}
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
        found = planner.search(shape, cluster, size, **given)
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
COLUMNS_OF_PLAN += ("seconds_per_step", "tokens_per_second_per_gpu", "mfu", "limit")


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


def tabulate_stages(kinds: Table, which: tuple[int, ...]) -> Table:
    """Table some stages of traffic.kinds, in GB."""
    shown = {
        "optimizer": "optimizer_bytes",
        "activations": "activations_bytes",
        "peak": "peak_bytes",
        "sent in its host": "sent_inside_bytes",
        "to other hosts": "sent_between_bytes",
    }
    rows = []
    for kind in (kinds[stage] for stage in which):
        row = {"stage": kind["stage"], "ranks": kind["ranks"]}
        rows.append(row | {f"{name}, GB": kind[column] / GB for name, column in shown.items()})
    return Table(rows, "A rank of some stages: what it holds, and sends in a step, by formula")


def tabulate_sizes(names: tuple[str, ...]) -> Table:
    """Table the parameters of models, and those that a token passes through."""
    rows = []
    for name in names:
        model = find_model(name)
        row = {"model": name, "parameters, billion": model.parameters / 1e9}
        row["a token passes through, billion"] = model.matrix_parameters / 1e9
        rows.append(row | {"states, TB": 16 * model.parameters / 1e12})
    return Table(rows, "AdamW in mixed precision: 16 bytes for each parameter")


def find_limits(cases: dict[str, Table]) -> Table:
    """Find the number of GPUs from which on each limit costs. cases: {model: table of grow}."""
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
    caption = f"Number of GPUs at which a limit first exceeds {SETS_IN:.0%} of a step"
    return Table(shown, f"{caption}; batch: more GPUs than sequences")


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
    """Read the record of the planner's errors, beside those of two others."""
    return read_json(REFERENCE / "accuracy.json")


def list_predicted_rows() -> list[dict]:
    """List the recorded rows whose seconds were predicted."""
    return [row for row in read_accuracy()["rows"] if row["error %"] is not None]


def errors_by_table() -> Table:
    """Table the errors of each published table, each row predicted by a fit without it."""
    found, shown = read_accuracy(), []
    for row in found["tables"]:
        own = [r for r in found["rows"] if r["table"] == row["table"]]
        line = {"published by": PUBLISHED[row["table"]], "rows": len(own)}
        line["largest %"] = max(abs(r["error %"]) for r in own)
        line["pairs ranked correctly %"] = row["pairs ranked correctly %"]
        for name, key in ERRORS.items():
            known = [abs(r[key]) for r in own if r[key] is not None]
            line[f"{name}, mean %"] = fmean(known) if known else None
        shown.append(line)
    caption = "Errors in seconds of a step, each row left out once"
    return Table(shown, f"{caption}; mlsysim {found['mlsysim']}")


def mean_errors() -> dict[str, float]:
    """Return the mean error in % of each predictor, over the rows that all three have."""
    rows = read_accuracy()["rows"]
    all_three = [row for row in rows if None not in [row[key] for key in ERRORS.values()]]
    return {name: fmean(abs(row[key]) for row in all_three) for name, key in ERRORS.items()}


def count_ranked_pairs() -> tuple[float, int]:
    """Count the pairs of rows of one table that the planner ranks correctly, and all such pairs."""
    key = "pairs ranked correctly %"
    known = [row for row in read_accuracy()["tables"] if row[key] is not None]
    pairs = [row["rows"] * (row["rows"] - 1) // 2 for row in known]
    return sum(n * row[key] / 100 for n, row in zip(pairs, known, strict=True)), sum(pairs)


def worst_errors(most: int = 8) -> Table:
    """Table the rows with the largest errors, and what may explain them."""

    def plan(row: dict):
        return read_published_row(row["table"], row["row"]).plan

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
    caption = "The worst rows, each predicted by constants fitted without it"
    return Table.of(list_predicted_rows()[:most], columns, caption)


def errors_left_out(tables=("vtrain_multi", "mosaicml_mpt", "torchtitan")) -> Table:
    """Table the errors when more than one row is held out of the fit."""
    found, shown = read_accuracy(), []
    kinds = dict.fromkeys(row["left out"] for row in found["harder"])
    for table in tables:
        own = {row["left out"]: row["mean %"] for row in found["harder"] if row["table"] == table}
        one = next(row["mean %"] for row in found["tables"] if row["table"] == table)
        shown.append({"published by": PUBLISHED[table], "one row": one, **kinds, **own})
    return Table(shown, "Mean error in %, by what was held out of the fit")


def errors_unseen() -> Table:
    """Table twenty runs on a recorded machine, each predicted before it ran."""
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


def find_published(row_id: str) -> dict:
    """Return a recorded row: seconds, predicted, error % and more. Raises StopIteration."""
    return next(row for row in read_accuracy()["rows"] if row["row"] == row_id)


def compare_peaks() -> Table:
    """Compare the predicted peak memory with that of torchtitan's rows."""
    shown = []
    for row in published.table("torchtitan"):
        if row["published_peak_gib"]:
            run = f"{row['model']}, {row['published_techniques']}, {row['sequence_length']} tokens"
            measured = float(row["published_peak_gib"])
            found = planner.answer(planner.read(row)).peak_bytes / GIB
            line = {"run": run, "published GiB": measured, "predicted GiB": found}
            shown.append(line | {"error %": 100 * (found / measured - 1)})
    reserve = fitted_constants.EXPLAINED["reserved"]["default"] - 1
    return Table(shown, f"Peak memory of a GPU: by formula, and {reserve:.0%} for the allocator")


def llama_peaks() -> Table:
    """Predict Llama 3 405B's published mesh with one, two and four stages on each rank."""
    row = published.table("llama3_table4")[0]
    shown = []
    for virtual in (1, 4, 8):
        found = planner.answer(planner.read({**row, "virtual": str(virtual)}))
        line = {"stages on a rank": virtual, "peak, GB": found.peak_bytes / GB}
        shown.append(line | {"seconds": found.seconds, "bubble, s": found.parts["bubble"]})
    return Table(shown, "Llama 3 405B on 8,192 H100s of 80 GB, predicted")


def tabulate_constants(stack: str) -> Table:
    """Table the constants that were fitted for a stack and for all, and what each means."""
    found, tables = read_accuracy(), fitted_constants.STACKS[stack]["tables"]
    rows = [row for row in found["constants"] if row["stack"] in (stack, "all")]
    columns = {name: name for name in ("constant", "stack", "value", "unit", "range", "is")}
    runs = [row["table"] in tables for row in found["rows"] if row["half"] == "fitted"]
    return Table.of(rows, columns, f"Fitted to {len(runs)} published runs, {sum(runs)} of {stack}")
