"""What a rank sends in a step: `bytes_sent(model, plan, rank)`, and each kind of rank: `kinds`.

Ranks of one pipeline stage of a published model hold and send the same; nothing is looped over
ranks. Of this course's scripts (Plan.script) all is counted over gloo.
"""

from collections import Counter

from bootcamp.costs import context, experts, links, memory, pipeline_schedules, sharding
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.memory import gathered_layer
from bootcamp.costs.model_shapes import NUMBER, VOCABULARY, Model
from bootcamp.costs.plans import UNITS, Plan, check
from bootcamp.costs.sharding import GLOO
from bootcamp.table import Table


def bytes_sent(
    model: Model, plan: Plan, rank: int = 0, factors: dict[str, int] = GLOO
) -> dict[str, float]:
    """Count {axis: bytes} of a script's rank; the mean over the ranks for ZeRO-1 of torch."""
    p = plan
    borders = pipeline_schedules.borders(p.schedule, p.stage_of(rank), p.pipeline)
    if p.script == "3d":
        calls = _calls_of_stage(model, p, rank)
    else:
        calls = tensor_calls(model, p.batch // p.data, p.sequence) if p.tensor > 1 else {}
    return {
        "pipeline": borders * p.micro_batches * memory.border_bytes(model, p) / p.tensor,
        "data": _over_data(model, p, rank, factors),
        "tensor": sharding.bytes_of_calls(calls, p.tensor, factors),
    }


def _over_data(model: Model, plan: Plan, rank: int, factors: dict[str, int]) -> float:
    p, layers = plan, memory.layers_of(model, plan, rank)
    whole = NUMBER * sum(layer.parameters(p.tensor) for layer in layers)
    if p.script in UNITS:
        whole = sum(gathered_layer(layer, p.sharing) for layer in layers)
    strategy = {"zero1": "zero1 of torch", "hsdp": "hsdp"}.get(
        p.script, ("ddp", "zero1", "zero2", "fsdp")[p.stage]
    )
    head = gathered_layer(model.parts[-1], p.sharing)
    root = (memory.gathered(model, p) if p.tensor > 1 else head) / whole
    # DeepSpeed's stage 3 keeps what it has gathered of small models
    how = {"keep_gathered": p.keep_gathered or p.script == "zero", "root": root}
    return sharding.sent_bytes(strategy, whole, p.data, factors, shard=p.sharing, **how)


def tensor_calls(
    model: Model, samples: int, sequence_parallel: bool = False, separate: bool = False
) -> dict[tuple[str, int], int]:
    """{(kind, bytes): how often in a step with AdamW}, bytes of the whole tensor on one rank.

    separate: query, key and value each send the gradient of their common input.
    """
    layers, column = model.layers, NUMBER * samples * model.sequence  # s b
    whole = column * model.hidden  # s b h
    counts = {("all-reduce", column): 3}  # the loss: maxima, sums, the targets' scores
    if not sequence_parallel:
        each = 6 if separate else 4
        counts["all-reduce", whole] = each * layers + 1  # backward of the head
        return counts
    counts["all-gather", whole] = 4 * layers + 2  # before the head; backward of the embedding
    counts["reduce-scatter", whole] = 4 * layers + 1  # backward of the head
    norms = 2 * (2 * layers + 1)  # weights and biases: AdamW asks for each gradient three times
    counts["all-reduce", NUMBER * model.hidden] = 3 * norms
    return counts


def _calls_of_stage(model: Model, plan: Plan, rank: int) -> dict[tuple[str, int], int]:
    """The same of a rank of three axes.

    A block gathers twice in each pass, and reduces as often. The embedding gathers in its backward
    pass; the head gathers its input and the scores, and reduces in its backward pass.
    """
    names = [layer.name.split()[0] for layer in memory.layers_of(model, plan, rank)]
    column = NUMBER * (plan.batch // plan.data) * model.sequence
    blocks, head = names.count("block"), names.count("head")
    return {
        ("all-gather", column * model.hidden): 3 * blocks + len(names),
        ("all-gather", column * VOCABULARY): head,
        ("reduce-scatter", column * model.hidden): 4 * blocks + head,
    }


def fsdp_calls(model: Model, plan: Plan) -> dict[tuple[str, int], int]:
    """{(kind, bytes of the whole unit): how often a rank of FSDP2 calls it in a step}."""
    found = Counter()
    for layer in model.parts:
        whole = gathered_layer(layer, plan.sharing)
        once = plan.keep_gathered or layer is model.parts[-1]
        found["all-gather", whole] += 1 if once else 2
        found["reduce-scatter", whole] += 1
    return found


def traffic(model: Model, cluster: Cluster, plan: Plan, stage: int = 0) -> dict[str, dict]:
    """{axis: {"inside", "between"}}: bytes that a rank of a stage sends in a step.

    inside: over its host's own links. between: its share of what its host sends to others.
    """
    groups, m = links.groups(plan), plan.micro_batches
    layers, numbers = memory.on_rank(model, plan, stage)
    tokens = plan.micro_batch * model.sequence / plan.context
    number = 4 if plan.precision == "fp32" else 2
    size = number * tokens * model.hidden
    forwards = 3 if plan.recompute == "full" else 2  # passes with two all-reduces: and the backward
    heads = model.key_heads / plan.tensor
    keys = context.keys_bytes(tokens * plan.context, heads, model.of_head, number=number)
    routed = experts.rows_bytes(tokens, model.hidden, model.chosen, number=number)
    own = layers * model.divided_parameters(plan.tensor, plan.expert)
    groups["data"] = groups["shard"]
    groups["data of experts"] = links.replicas(groups["shard"], plan)
    asked = [
        ("tensor", "all-reduce", size, 2 * forwards * layers * m),
        ("context", "all-gather", keys, layers * m),
        ("context", "reduce-scatter", keys, layers * m),
        ("expert", "all-to-all", routed, experts.EXCHANGES * layers * m),
    ]
    for axis, kind, share in sharding.collectives(
        ("ddp", "zero1", "zero2", "hsdp")[plan.stage],
        plan.sharing,
        plan.keep_gathered or plan.pipeline > 1,
        plan.reduce_bytes / number,
        micro_batches=m if plan.each_time else 1,
    ):
        if axis == "replicate":
            asked.append((axis, kind, number * numbers * share, 1))
        else:
            asked.append(("data", kind, number * (numbers - own) * share, 1))
            asked.append(("data of experts", kind, number * own * share, 1))
    neighbours = (stage > 0) + (stage < plan.pipeline - 1)
    handed = (1 + (neighbours > 1)) * m * size / plan.tensor if neighbours else 0.0
    far = groups["pipeline"].stride >= cluster.per_host
    found = {"pipeline": Counter(inside=handed * (not far), between=handed * far)}
    for axis, kind, whole, times in asked:
        sent = found.setdefault(axis, Counter())
        for where, size in links.bytes_sent(kind, whole, groups[axis], cluster).items():
            sent[where] += times * size
    return found


def kinds(model: Model, plan: Plan, cluster: Cluster) -> Table:
    """A line for each kind of rank: how many there are, what they hold by kind, what they send."""
    check(model, cluster, plan)
    lines, each = [], plan.ranks // plan.pipeline
    for stage in range(plan.pipeline):
        held = memory.rank_memory(model, plan, stage * each)
        sent = traffic(model, cluster, plan, stage)
        line = {"stage": stage, "ranks": each}
        line |= {f"{kind}_bytes": round(size) for kind, size in held.items()}
        line["peak_bytes"] = round(sum(held.values()))
        for where in ("inside", "between"):
            line[f"sent_{where}_bytes"] = round(sum(axis[where] for axis in sent.values()))
        lines.append(line)
    return Table(lines, f"{plan.ranks:,} ranks, a line for each kind, by formula")
