"""Bytes that a rank sends in a step: `bytes_sent(model, plan, rank)` of this course's scripts, over
gloo, and `traffic` of any model, whose ranks of one pipeline stage hold and send the same.

Attention over a text in parts sends in one of three ways: keys and values are gathered (Llama 3,
arXiv:2407.21783, section 3.3.2), go round a ring (Liu et al., arXiv:2310.01889), or an all-to-all
gives each rank some heads of the complete text (DeepSpeed Ulysses, arXiv:2309.14509).
"""

from collections import Counter

from bootcamp.costs import experts, memory, pipeline_schedules, sharding
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.memory import gathered_layer
from bootcamp.costs.model_shapes import FLOAT32_BYTES, VOCABULARY, Model
from bootcamp.costs.plans import UNITS, Plan, check
from bootcamp.costs.sharding import GLOO
from bootcamp.table import Table

CONTEXT_WAYS = ("all-gather", "ring", "ulysses")


def bytes_sent(model: Model, plan: Plan, rank: int = 0) -> dict[str, float]:
    """Count {axis: bytes} of a script's rank; the mean over the ranks for ZeRO-1 of torch."""
    p = plan
    borders = pipeline_schedules.count_borders(p.schedule, p.stage_of(rank), p.pipeline)
    if p.script == "3d":
        calls = _calls_of_stage(model, p, rank)
    else:
        calls = tensor_calls(model, p.batch // p.data, p.sequence_parallel) if p.tensor > 1 else {}
    return {
        "pipeline": borders * p.micro_batches * memory.border_bytes(model, p) / p.tensor,
        "data": _over_data(model, p, rank),
        "tensor": sharding.bytes_of_calls(calls, p.tensor, GLOO),
    }


def _over_data(model: Model, plan: Plan, rank: int) -> float:
    p, layers = plan, memory.layers_of(model, plan, rank)
    if p.script in UNITS:  # and the replicas of HSDP reduce what a row has reduced
        replicas, part = p.data // p.sharing, sum(gathered_layer(x, p.sharing) for x in layers)
        between = sharding.ring_bytes("all-reduce", part / p.sharing, replicas, GLOO)
        return between + sharding.bytes_of_calls(fsdp_calls(model, p), p.sharing, GLOO)
    whole = FLOAT32_BYTES * sum(layer.parameters(p.tensor) for layer in layers)
    strategy = "zero1 of torch" if p.script == "zero1" else sharding.OF_STAGE[p.stage]
    # DeepSpeed's stage 3 keeps what it has gathered of small models
    how = {"keep_gathered": p.keep_gathered or p.script == "zero", "shard": p.sharing}
    how["root"] = memory.gathered(model, p) / whole
    return sharding.sent_bytes(strategy, whole, p.data, GLOO, **how)


def tensor_calls(
    model: Model, samples: int, sequence_parallel: bool = False, separate: bool = False
) -> dict[tuple[str, int], int]:
    """Count {(kind, bytes): calls in a step with AdamW}, bytes of the whole tensor on one rank.

    separate: query, key and value each send the gradient of their common input.
    """
    layers, column = model.layers, FLOAT32_BYTES * samples * model.sequence  # s b
    whole = column * model.hidden  # s b h
    counts = {("all-reduce", column): 3}  # the loss: maxima, sums, the targets' scores
    if not sequence_parallel:
        each = 6 if separate else 4
        counts["all-reduce", whole] = each * layers + 1  # backward of the head
        return counts
    counts["all-gather", whole] = 4 * layers + 2  # before the head; backward of the embedding
    counts["reduce-scatter", whole] = 4 * layers + 1  # backward of the head
    norms = 2 * (2 * layers + 1)  # weights and biases: AdamW asks for each gradient three times
    counts["all-reduce", FLOAT32_BYTES * model.hidden] = 3 * norms
    return counts


def _calls_of_stage(model: Model, plan: Plan, rank: int) -> dict[tuple[str, int], int]:
    """Count the same of a rank of three axes.

    A block gathers twice in each pass, and reduces as often. The embedding gathers in its backward
    pass; the head gathers its input and the scores, and reduces in its backward pass.
    """
    names = [layer.name.split()[0] for layer in memory.layers_of(model, plan, rank)]
    column = FLOAT32_BYTES * (plan.batch // plan.data) * model.sequence
    blocks, head = names.count("block"), names.count("head")
    return {
        ("all-gather", column * model.hidden): 3 * blocks + len(names),
        ("all-gather", column * VOCABULARY): head,
        ("reduce-scatter", column * model.hidden): 4 * blocks + head,
    }


def fsdp_calls(model: Model, plan: Plan) -> dict[tuple[str, int], int]:
    """Count {(kind, bytes of the whole unit): calls of a rank of FSDP2 in a step}."""
    found = Counter()
    for layer in model.parts:
        whole = gathered_layer(layer, plan.sharing)
        once = plan.keep_gathered or layer is model.parts[-1]
        found["all-gather", whole] += 1 if once else 2
        found["reduce-scatter", whole] += 1
    return found


def keys_bytes(tokens: float, key_heads: float, of_head: int, number: int = 4) -> float:
    """Return the bytes of a layer's keys and values. of_head: a head's width."""
    return 2 * number * tokens * key_heads * of_head


def context_bytes(
    way: str,
    tokens: int,  # of the complete texts of a batch
    heads: int,  # of queries
    key_heads: int,  # of keys and values
    of_head: int,
    ranks: int,
    factors: dict[str, int] = sharding.RING,
) -> dict[str, float]:
    """Return {"forward", "backward"}: bytes a rank sends for one layer's attention, in float32.

    Gathered keys are kept. Round the ring they go N - 1 times in each pass, gradients once more.
    """
    keys = keys_bytes(tokens, key_heads, of_head)
    gathered = sharding.ring_bytes("all-gather", keys, ranks)
    if way == "all-gather":
        return {
            "forward": gathered,
            "backward": sharding.ring_bytes("reduce-scatter", keys, ranks, factors),
        }
    if way == "ring":
        return {"forward": gathered, "backward": gathered + keys}
    queries = keys_bytes(tokens, heads, of_head)  # and outputs; of each a rank has its part alone
    each = sharding.ring_bytes("all-to-all", (queries + keys) / ranks, ranks)
    return {"forward": each, "backward": each}


def list_layer_collectives(model: Model, plan: Plan, number_bytes: int = 2) -> list[tuple]:
    """List (axis, collective, bytes, calls in a forward, calls in a backward) of a layer.

    For one micro-batch. Of the keys and values that context ranks gather none are kept.
    """
    tokens = plan.micro_batch * model.sequence / plan.context
    own = tokens * plan.context, model.key_heads / plan.tensor, model.width_of_head
    keys = keys_bytes(*own, number=number_bytes)
    rows = experts.rows_bytes(tokens, model.hidden, model.chosen, number=number_bytes)
    return [
        ("tensor", "all-reduce", number_bytes * tokens * model.hidden, 2, 2),
        ("context", "all-gather", keys, 1, 1),
        ("context", "reduce-scatter", keys, 0, 1),
        ("expert", "all-to-all", rows, experts.EXCHANGES // 2, experts.EXCHANGES // 2),
    ]


def traffic(model: Model, cluster: Cluster, plan: Plan, stage: int = 0) -> dict[str, dict]:
    """Count {axis: {"inside", "between" hosts}}: bytes that a rank of a stage sends in a step."""
    groups, m = plan.groups, plan.micro_batches
    layers, numbers = memory.count_on_rank(model, plan, stage)
    number = 4 if plan.precision == "fp32" else 2
    forwards = 2 if plan.recompute == "full" else 1
    own = layers * model.shared_expert_parameters(plan.tensor, plan.expert)
    calls = [
        (axis, kind, size, (forwards * forward + backward) * layers * m)
        for axis, kind, size, forward, backward in list_layer_collectives(model, plan, number)
    ]
    strategy, keep = sharding.OF_STAGE[plan.stage], plan.keep_gathered or plan.pipeline > 1
    how = {"number": plan.reduce_bytes / number, "micro_batches": m if plan.each_time else 1}
    for axis, kind, share in sharding.collectives(strategy, plan.sharing, keep, **how):
        of_experts = own if axis == "shard" else 0.0
        calls.append((axis, kind, number * (numbers - of_experts) * share, 1))
        calls.append(("shard of experts", kind, number * of_experts * share, 1))
    neighbours = (stage > 0) + (stage < plan.pipeline - 1)
    size = number * plan.micro_batch * model.sequence / plan.context * model.hidden
    handed = neighbours * m * size / plan.tensor
    far = groups["pipeline"].stride >= cluster.per_host
    found = {"pipeline": Counter(inside=handed * (not far), between=handed * far)}
    for axis, kind, whole, times in calls:
        sent = found.setdefault(axis, Counter())
        split = sharding.split_by_link(kind, whole, groups[axis], cluster.per_host)
        sent.update({where: times * size for where, size in split.items()})
    return found


def kinds(model: Model, plan: Plan, cluster: Cluster) -> Table:
    """Table each kind of rank: how many there are, the bytes that they hold and send."""
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
