"""Which plan to choose: `advise(shape, cluster, batch=1024)` ranks those that fit.

It tries every mesh of powers of two and some ways of sharding and recomputing, and predicts each.
The constants are those of a stack never seen, unless one is named.
"""

from dataclasses import dataclass, replace
from itertools import product

from bootcamp.costs import memory, stacks, step
from bootcamp.costs.hardware import GB, Cluster
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.predict import WORDS
from bootcamp.costs.setting import Plan, check
from bootcamp.table import Table

JOULES_OF_KWH = 3.6e6


@dataclass(frozen=True)
class Advice:
    """plans: those that fit, the fastest first. closest: of those that do not, the nearest.

    knobs: what would have to change for the closest to fit, one at a time.
    """

    plans: Table
    closest: Table
    knobs: Table


def candidates(shape: Model, cluster: Cluster, batch: int, contexts: bool = False) -> list[Plan]:
    """Return every possible plan of powers of two along tensor (in a host) and pipeline.

    contexts: along context too.
    """
    powers = [2**i for i in range(cluster.gpus.bit_length())]
    inside = [tensor for tensor in powers if tensor <= cluster.per_host]
    found = []
    for tensor, pipeline, context in product(inside, powers, powers if contexts else (1,)):
        data, left = divmod(cluster.gpus, tensor * pipeline * context)
        if not data or left or batch % data:
            continue
        for micro, recompute in product((1, 2, 4, 8), ("none", "selective op", "full")):
            plan = Plan(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                stage=3 if pipeline == 1 else 1,
                micro_batch=micro,
                batch=batch,
                sequence=tensor > 1,
                recompute=recompute,
                compiled=True,
            )
            if batch // data % micro == 0 and _can_be(shape, cluster, plan):
                found.append(plan)
    return found


def advise(
    shape: Model,
    cluster: Cluster,
    batch: int,
    stack: str = "",
    dollars_per_gpu_hour: float | None = None,
    tokens: float | None = None,
    most: int = 10,
) -> Advice:
    """Feasible plans ranked by speed, each with why it is as fast as it is.

    batch: samples of a step. tokens: of a whole training; with it come days and, with a price,
    dollars and the energy at the GPUs' rated power. Raises ValueError where no mesh can be.
    """
    c = stacks.constants(stack, cluster.gpu.name)
    fitting, others = [], []
    for plan in candidates(shape, cluster, batch):
        held = memory.peak(shape, plan, c.reserved)
        (fitting if held <= cluster.gpu.memory else others).append((plan, held))
    if not fitting and not others:
        raise ValueError(f"a batch of {batch} divides over no mesh of {cluster.gpus} GPUs")
    lines = []
    for plan, held in fitting:
        parts = step.seconds(shape, cluster, plan, c)
        line = describe(plan) | _speed(shape, cluster, plan, parts.total) | {"peak_gb": held / GB}
        line["why"] = why(vars(parts))
        lines.append(line | _costs(cluster, line, tokens, dollars_per_gpu_hour))
    lines.sort(key=lambda line: line["seconds_per_step"])
    others.sort(key=lambda pair: pair[1])
    near = [describe(plan) | {"peak_gb": held / GB} for plan, held in others[:1]]
    turned = [] if fitting or not others else knobs(shape, cluster, others[0][0], c.reserved)
    limit = f"{cluster.gpu.memory / GB:.0f} GB of {cluster.gpu.name}"
    return Advice(
        Table(lines[:most], f"{len(fitting)} plans fit {limit}; the fastest, predicted"),
        Table(near, f"of {len(others)} plans that do not fit {limit}, the closest"),
        Table(turned, f"what would make it fit {limit}, one change at a time"),
    )


def describe(plan: Plan) -> dict:
    """The columns that name a plan in a table."""
    return {
        "tensor": plan.tensor,
        "pipeline": plan.pipeline,
        "data": plan.data,
        "ZeRO": plan.stage,
        "micro-batch": plan.micro_batch,
        "recompute": plan.recompute,
    }


def why(parts: dict[str, float]) -> str:
    """The share that computes, and the largest share that does not."""
    total = sum(parts.values())
    most = max(WORDS, key=lambda name: parts[name])
    share = parts[most] / total
    said = f"computes {parts['compute'] / total:.0%} of the step"
    return f"{said}; {WORDS[most]} take {share:.0%}" if share >= 0.01 else said


def knobs(shape: Model, cluster: Cluster, plan: Plan, reserved: float) -> list[dict]:
    """{"change", "peak_gb", "fits"} for each single change of a plan that is one too large."""
    twice = replace(cluster, gpus=2 * cluster.gpus)
    changes = {
        "recompute whole layers": (cluster, replace(plan, recompute="full")),
        "half the micro-batch": (cluster, replace(plan, micro_batch=max(1, plan.micro_batch // 2))),
        "ZeRO-3": (cluster, replace(plan, stage=3)),
        "offload the optimizer": (cluster, replace(plan, offload=True)),
        "twice the tensor ranks": (twice, replace(plan, tensor=2 * plan.tensor)),
        "twice the pipeline": (twice, replace(plan, pipeline=2 * plan.pipeline)),
        "twice the data ranks": (
            twice,
            replace(plan, data=2 * plan.data, batch=2 * plan.batch),
        ),
    }
    lines = []
    for name, (where, changed) in changes.items():
        if changed == plan or not _can_be(shape, where, changed):
            continue
        held = memory.peak(shape, changed, reserved)
        fits = held <= where.gpu.memory
        lines.append({"change": name, "GPUs": where.gpus, "peak_gb": held / GB, "fits": fits})
    for size in (0.5, 0.25):
        shorter = replace(shape, sequence=int(shape.sequence * size))
        held = memory.peak(shorter, plan, reserved)
        name = f"sequences of {shorter.sequence}"
        fits = held <= cluster.gpu.memory
        lines.append({"change": name, "GPUs": cluster.gpus, "peak_gb": held / GB, "fits": fits})
    return lines


def _can_be(shape: Model, cluster: Cluster, plan: Plan) -> bool:
    try:
        check(shape, cluster, plan)
    except ValueError:
        return False
    return plan.micro_batches >= plan.pipeline


def _speed(shape: Model, cluster: Cluster, plan: Plan, seconds: float) -> dict:
    tokens = plan.batch * shape.sequence / seconds / cluster.gpus
    mfu = tokens * shape.flops_of_token() / cluster.gpu.peak
    return {"seconds_per_step": seconds, "tokens_per_second_per_gpu": tokens, "mfu": mfu}


def _costs(cluster: Cluster, line: dict, tokens: float | None, dollars: float | None) -> dict:
    """Days, energy and dollars of a whole training, where its length and the price are given."""
    if not tokens:
        return {}
    seconds = tokens / line["tokens_per_second_per_gpu"] / cluster.gpus
    joules = seconds * cluster.gpus * cluster.gpu.watts
    found = {"days": seconds / 86400, "MWh": joules / JOULES_OF_KWH / 1e3}
    if dollars is not None:
        found["dollars"] = seconds / 3600 * cluster.gpus * dollars
    return found
