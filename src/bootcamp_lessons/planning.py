"""Lesson 10's tables, all by the planner's formulas: `planning.plans_of("Llama 3 70B", gpus=256)`.

Nothing is launched or measured, and nothing is drawn: the figures of bootcamp.plots take these
tables. GB are 1e9 bytes. A batch is counted in tokens.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from bootcamp.costs import (
    failures,
    fitted_constants,
    memory,
    model_shapes,
    plan_table,
    planner,
    published,
)
from bootcamp.costs.hardware import GB, Cluster, Gpu, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plan_table import Workload
from bootcamp.costs.plans import RECOMPUTE, Plan, candidates, check, possible
from bootcamp.costs.step import Step
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

MODELS = ("Llama 2 7B", "Llama 3 70B", "Llama 3 405B", "Mixtral 8x7B")
GPUS = ("A100 80GB", "H100 80GB", "H200", "B200")
LINKS = {"400 Gbit/s a GPU": 400, "200 Gbit/s a GPU": 200, "50 Gbit/s a GPU": 50}  # GB/s a host
BATCH = 2**22  # tokens of a step
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


def shape_of(model: str) -> Model:
    """A model of the planner's table by its name. Raises ValueError for one that it lacks."""
    if (shape := model_shapes.named(model)) is None:
        raise ValueError(f"model={model!r} is not known: expected one of {', '.join(models())}")
    return shape


def cluster_of(gpus: int, host_gb_s: float = 400, kind: str = "H100 80GB") -> Cluster:
    """A cluster with 8 GPUs in a host. host_gb_s: GB/s that a host sends to others."""
    return Cluster(gpu(kind), gpus, host_bytes=host_gb_s * GB)


def models() -> list[str]:
    """The names of the planner's models."""
    return [row["name"] for row in published.table("models")]


def samples(shape: Model, batch: int) -> int:
    """How many sequences so many tokens are, at least one."""
    return max(1, batch // shape.sequence)


# Memory


def memory_by_part(models: Iterable[str] = MODELS, gpus: int = 64) -> Table:
    """What the fullest H100 holds of each model in each of `ways(gpus)`, part by part, in GB."""
    device, lines = gpu("H100 80GB"), []
    for model in models:
        for name, fields in ways(gpus).items():
            parts = held_gb(shape_of(model), Plan(compiled=True, **fields), device)
            total = sum(parts.values())
            line = {"model": model, "plan": name}
            line |= {f"{part}_gb": size for part, size in parts.items()} | {"peak_gb": total}
            lines.append(line | {"gpu_gb": device.memory / GB, "fits": total * GB <= device.memory})
    return Table(lines, f"GB on one {device.name}, by formula; a sample of a GPU at a time")


def ways(gpus: int) -> dict[str, dict]:
    """One GPU, then so many: states shared, layers recomputed too, matrices split too.

    Each GPU, or each 8 that split matrices, has one sample at a time.
    """
    shared = {"data": gpus, "batch": gpus, "stage": 3}
    split = {"tensor": 8, "sequence": True, "data": gpus // 8, "batch": gpus // 8}
    return {
        "1 GPU": {},
        f"ZeRO-3 over {gpus}": shared,
        f"ZeRO-3 over {gpus}, recomputed": {**shared, "recompute": "full"},
        f"ZeRO-3 over {gpus // 8} x tensor 8": {**shared, **split},
    }


def held_gb(shape: Model, plan: Plan, device: Gpu) -> dict[str, float]:
    """{"parameters", "gradients", "optimizer", "activations", "buffers"} of the fullest rank.

    buffers: the loss's scores, what ZeRO-3 has gathered, and what the allocator keeps in reserve.
    """
    held = memory.fullest(shape, plan)
    parts = {name: held[name] / GB for name in ("parameters", "gradients", "optimizer")}
    parts["activations"] = (held["activations"] + held.get("recomputed", 0.0)) / GB
    reserved = fitted_constants.constants("", device.name).reserved
    return parts | {"buffers": reserved * sum(held.values()) / GB - sum(parts.values())}


# Plans


def described(plan: Plan) -> dict:
    """The columns that name a plan in a table."""
    return {
        "tensor": plan.tensor,
        "pipeline": plan.pipeline,
        "data": plan.data,
        "ZeRO": plan.stage,
        "micro-batch": plan.micro_batch,
        "recompute": plan.recompute,
    }


def plan_row(shape: Model, cluster: Cluster, plan: Plan) -> dict:
    """One plan as a row of `plans_of`. Raises ValueError for a plan that cannot be."""
    check(shape, cluster, plan)
    answer = planner.unseen(shape, cluster, plan)
    return described(plan) | {
        "fits": answer.peak_bytes <= cluster.gpu.memory,
        "peak_gb": answer.peak_bytes / GB,
        "gpu_gb": cluster.gpu.memory / GB,
        "seconds_per_step": answer.seconds,
        "tokens_per_second_per_gpu": answer.tokens,
        "mfu": answer.mfu,
        "limit": answer.limit,
        "slower_by": "",
        "gb": held_gb(shape, plan, cluster.gpu),
        "seconds": answer.parts,
    }


def plans_of(
    model: str,
    kind: str = "H100 80GB",
    gpus: int = 256,
    batch: int = BATCH,
    host_gb_s: float = 400,
) -> Table:
    """Every plan of a model on a cluster, those that fit first, the fastest first.

    "slower_by" names what a plan loses most by against the best, "limit" what it waits for most.
    The last columns hold dictionaries: "gb" {part: GB}, "seconds" {part: of a step}. Raises
    ValueError where no plan divides the batch.
    """
    shape, cluster = shape_of(model), cluster_of(gpus, host_gb_s, kind)
    size = samples(shape, batch)
    found = [plan_row(shape, cluster, p) for p in candidates(shape, cluster, size)]
    if not found:
        raise ValueError(f"{size:,} samples divide over no mesh of {gpus:,} GPUs")
    where = f"{model} on {gpus:,} x {cluster.gpu.name}, {batch / 1e6:.3g} M tokens a step"
    fitting = sum(row["fits"] for row in found)
    return Table(ranked(found), f"{where}: {len(found)} plans, {fitting} fit; predicted")


def ranked(plans: list[dict]) -> list[dict]:
    """Rows of plans, the best first, each with what it loses most by against the best."""
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


_plans = cache(plans_of)  # the sliders ask again and again for the same cluster's


def with_plan(
    model: str, kind: str, gpus: int, host_gb_s: float, zero: int, **fields
) -> tuple[Table, dict]:
    """`plans_of` with one more plan, as the sliders choose it; and the row of that plan.

    zero: ZeRO's stage. fields: others of a Plan; data ranks are what is left of the GPUs. Raises
    ValueError for a plan that cannot be.
    """
    shape, cluster = shape_of(model), cluster_of(gpus, host_gb_s, kind)
    fields |= {"stage": zero, "batch": samples(shape, BATCH), "compiled": True}
    plan = Plan(**with_data(gpus, fields), sequence=fields["tensor"] > 1)
    table, columns = _plans(model, kind, gpus, BATCH, host_gb_s), described(plan)
    others = [row for row in table if not columns.items() <= row.items()]
    found = Table(ranked([*others, plan_row(shape, cluster, plan)]), table.caption)
    return found, next(row for row in found if columns.items() <= row.items())


def with_data(gpus: int, fields: dict) -> dict:
    """The fields of a plan, with the data ranks that its other axes leave of the GPUs."""
    axes = [fields.get(axis, 1) for axis in ("tensor", "pipeline", "context")]
    split = math.prod(ranks for ranks in axes if isinstance(ranks, int))
    return {"data": max(1, gpus // max(1, split)), **fields}


def vary_closest(model: str, gpus: int, batch: int, kind: str = "H100 80GB") -> tuple[Table, Table]:
    """Of the plans that do not fit, the closest; and the memory after each single change of it.

    batch: samples of a step.
    """
    shape, cluster = shape_of(model), cluster_of(gpus, kind=kind)
    plans = candidates(shape, cluster, batch)
    reserved = fitted_constants.constants("", cluster.gpu.name).reserved

    def gb(plan: Plan, shape: Model = shape) -> float:
        return memory.peak(shape, plan, reserved) / GB

    plan, limit = min(plans, key=gb), cluster.gpu.memory / GB
    twice = replace(cluster, gpus=2 * gpus)
    changes = {
        "recompute whole layers": (cluster, {"recompute": "full"}),
        "half the micro-batch": (cluster, {"micro_batch": max(1, plan.micro_batch // 2)}),
        "ZeRO-3": (cluster, {"stage": 3}),
        "offload the optimizer": (cluster, {"offload": True}),
        "twice the tensor ranks": (twice, {"tensor": 2 * plan.tensor}),
        "twice the pipeline": (twice, {"pipeline": 2 * plan.pipeline}),
        "twice the data ranks": (twice, {"data": 2 * plan.data, "batch": 2 * plan.batch}),
    }
    found = {}
    for name, (where, fields) in changes.items():
        changed = replace(plan, **fields)
        if changed != plan and possible(shape, where, changed):
            found[name] = where.gpus, gb(changed)
    for length in (shape.sequence // 2, shape.sequence // 4):
        found[f"sequences of {length}"] = gpus, gb(plan, replace(shape, sequence=length))
    plan_table = [
        {"change": name, "GPUs": count, "peak_gb": held, "fits": held <= limit}
        for name, (count, held) in found.items()
    ]
    device = f"{limit:.0f} GB of {cluster.gpu.name}"
    caption = f"of {len(plans)} plans that do not fit {device}, the closest"
    closest = Table([described(plan) | {"peak_gb": gb(plan)}], caption)
    return closest, Table(plan_table, f"what would make it fit {device}, one change at a time")


# Growing


def grown(
    model: str,
    counts: Iterable[int] = tuple(2**k for k in range(3, 15)),
    batch: int = 2**24,
    host_gb_s: float = 400,
    keep: Callable[[Plan], bool] = lambda plan: True,
) -> Table:
    """The fastest plan that fits at each number of GPUs, with the same batch for all.

    keep: which plans may be chosen, all by default. "shares" is {part: share of the step},
    "marks" names the limits that set in at this number. Where no plan fits, numbers are None and
    "marks" says why.
    """
    shape = shape_of(model)
    size, before, lines = samples(shape, batch), set(), []
    for gpus in counts:
        cluster = cluster_of(gpus, host_gb_s)
        plans = [p for p in candidates(shape, cluster, size) if keep(p)]
        line = {"GPUs": gpus, "samples_per_gpu": size / gpus}
        answers = {plan: planner.unseen(shape, cluster, plan) for plan in plans}
        fitting = [p for p in plans if answers[p].peak_bytes <= cluster.gpu.memory]
        if not fitting:
            why = "no plan fits the memory" if plans else "no plan divides the batch"
            lines.append(line | dict.fromkeys(COLUMNS_OF_PLAN) | {"shares": {}, "marks": [why]})
            continue
        plan = min(fitting, key=lambda p: answers[p].seconds)
        row = plan_row(shape, cluster, plan)
        seconds = row["seconds"] | {"latency": latency(shape, cluster, plan)}
        shares = {part: each / row["seconds_per_step"] for part, each in seconds.items()}
        limits = _limits(shares, size / gpus)
        line |= {name: row[name] for name in COLUMNS_OF_PLAN}
        lines.append(line | {"shares": shares, "marks": sorted(limits - before)})
        before |= limits
    name = f"{model}, {batch / 1e6:.3g} M tokens a step on {cluster.gpu.name}"
    return Table(lines, f"{name}: the fastest plan that fits, predicted")


COLUMNS_OF_PLAN = ("tensor", "pipeline", "data", "ZeRO", "micro-batch", "recompute", "peak_gb")
COLUMNS_OF_PLAN += ("seconds_per_step", "tokens_per_second_per_gpu", "mfu", "limit")


def latency(shape: Model, cluster: Cluster, plan: Plan) -> float:
    """Seconds of a step that its collectives would take on links of any bandwidth."""
    wide = replace(cluster.gpu, bus=math.inf)
    free = replace(cluster, gpu=wide, host_bytes=math.inf)
    parts = Step(shape, free, plan, fitted_constants.constants("", cluster.gpu.name)).parts()
    return sum(parts[part] for part in CONNECTED)


def _limits(shares: dict[str, float], samples_per_gpu: float) -> set[str]:
    """batch, latency, links, bubble, launches: which of them cost a step more than SETS_IN.

    batch: there is less than a sample for each GPU, so data parallelism alone no longer divides it.
    """
    links = sum(shares[part] for part in CONNECTED) - shares["latency"]
    costs = {"latency": shares["latency"], "links": links}
    costs |= {"bubble": shares["bubble"], "launches": shares["host"]}
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
    """Published seconds of a step beside predicted ones, the worst first, with the error in %.

    Each was predicted by constants fitted to the stack's other rows (`make accuracy --record`).
    """
    lines = []
    for row in read_json(REFERENCE / "accuracy.json")["rows"]:
        table, error = row["table"], row["error %"]
        if error is not None:
            case = published_row(table, row["row"])
            line = {"run": _run_name(case), "GPUs": case.cluster.gpus}
            line |= {"published by": PUBLISHED[table], "published_seconds": row["seconds"]}
            line |= {"predicted_seconds": row["predicted"], "error %": error}
            lines.append(line | {"table": table, "row": row["row"]})
    lines.sort(key=lambda line: -abs(line["error %"]))
    return Table(lines, "seconds of a step, published and predicted without that row")


def published_row(table: str, row_id: str) -> Workload:
    """A published row as the planner reads it. Raises StopIteration for one that is not there."""
    return plan_table.read(next(row for row in published.table(table) if row["row_id"] == row_id))


def _run_name(case: Workload) -> str:
    """Parameters, mesh and GPU of a published row."""
    plan = case.plan
    size = case.image_model or f"{case.shape.parameters / 1e9:.3g} B"
    axes = {"TP": plan.tensor, "PP": plan.pipeline, "CP": plan.context, "DP": plan.data}
    mesh = " ".join(f"{name}{ranks}" for name, ranks in axes.items() if ranks > 1)
    return f"{size}, {mesh or '1 GPU'} {case.cluster.gpu.name.split()[0]}"


# Failures


def checkpoint_intervals(
    counts: Iterable[int] = (1024, 4096, 16384, 65536),
    save_seconds: float = 60,
    restart_seconds: float = 600,
    run: str = "Llama 3 405B",
) -> Table:
    """How often to save on so many GPUs, each as reliable as those of a published run."""
    lines = []
    for gpus in counts:
        between = failures.between_failures(gpus, run)
        best = failures.daly(save_seconds, between)
        share = failures.effective_share(best, save_seconds, between, restart_seconds)
        line = {"GPUs": gpus, "between_failures_seconds": between, "save_seconds": save_seconds}
        line |= {"restart_seconds": restart_seconds, "best_interval_seconds": best}
        lines.append(line | {"effective_share": share})
    return Table(lines, f"GPUs as reliable as those of {run}; best interval by Daly (2006)")
