"""What a rank sends in a step: `bytes_sent(model, plan, rank)`, and each kind of rank: `kinds`.

Ranks of one pipeline stage of a published model hold and send the same; nothing is looped over
ranks. Of this course's scripts (Plan.script) all is counted over gloo.
"""

from bisect import bisect_right
from math import ceil, prod

from bootcamp.costs import context, experts, links, memory, pipeline_schedules, sharding, tensor
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.memory import NUMBER, gathered_layer
from bootcamp.costs.model_shapes import VOCABULARY, Model
from bootcamp.costs.setting import UNITS, Plan, check
from bootcamp.costs.sharding import GLOO
from bootcamp.table import Table


def bytes_sent(
    model: Model, plan: Plan, rank: int = 0, factors: dict[str, int] = GLOO
) -> dict[str, float]:
    """Count {axis: bytes} of a script's rank; the mean over the ranks for ZeRO-1 of torch."""
    p = plan
    borders = pipeline_schedules.borders(p.schedule, p.stage_of(rank), p.pipeline)
    handed = borders * p.micro_batches * memory.border_bytes(model, p) / p.tensor
    calls = tensor_calls(model, p, rank) if p.tensor > 1 else {}
    return {
        "pipeline": handed,
        "data": _over_data(model, p, rank, factors),
        "tensor": tensor.sent_bytes(calls, p.tensor, factors),
    }


def _over_data(model: Model, plan: Plan, rank: int, factors: dict[str, int]) -> float:
    p, layers = plan, memory.layers_of(model, plan, rank)
    whole = NUMBER * sum(layer.parameters(p.tensor) for layer in layers)
    if p.script in UNITS:
        whole = sum(gathered_layer(layer, p.sharing) for layer in layers)
    strategy = {"zero1": "zero1", "hsdp": "hsdp"}.get(p.script, "fsdp" if p.stage == 3 else "ddp")
    if p.script == "zero" and 0 < p.stage < 3:
        strategy = "zero2"
    root = memory.gathered(model, p) / whole if p.tensor > 1 else 0
    if p.tensor == 1:
        root = gathered_layer(model.parts[-1], p.sharing) / whole
    # DeepSpeed's stage 3 keeps what it has gathered of small models
    kept = p.keep_gathered or p.script == "zero"
    asked = sharding.collectives(strategy, p.sharing, kept, root=root)
    if strategy == "zero1":  # an all-reduce, and each rank broadcasts its part
        asked = [("shard", "all-reduce", 1.0), ("shard", "all-gather", 1.0)]
    return sharding.sent_bytes(asked, whole, p.data, p.shard or None, factors)


def tensor_calls(model: Model, plan: Plan, rank: int = 0) -> dict[tuple[str, int], int]:
    """{(kind, bytes of the whole tensor): how often} a rank of a script calls it for its matrices.

    Of three axes each stage counts by itself: a block gathers twice in each pass, and reduces as
    often. The embedding gathers in its backward pass; the head gathers its input and the scores,
    and reduces in its backward pass.
    """
    samples = plan.batch // plan.data
    if plan.script != "3d":
        return tensor.collectives(model.sizes, samples, plan.sequence)
    names = [layer.name.split()[0] for layer in memory.layers_of(model, plan, rank)]
    each = NUMBER * samples * model.sequence
    blocks, head = names.count("block"), names.count("head")
    return {
        ("all-gather", each * model.hidden): 3 * blocks + len(names),
        ("all-gather", each * VOCABULARY): head,
        ("reduce-scatter", each * model.hidden): 4 * blocks + head,
    }


def calls(model: Model, plan: Plan) -> dict[tuple[str, int], int]:
    """{(kind, bytes of the whole tensor): how often a rank calls it in a step}: FSDP2's and TP's.

    A dispatcher does not see those of DDP.
    """
    if plan.script == "tp":
        return tensor_calls(model, plan)
    found: dict[tuple[str, int], int] = {}
    for layer in model.parts:
        whole = gathered_layer(layer, plan.sharing)
        once = plan.keep_gathered or layer is model.parts[-1]
        for key, count in (("all-gather", 1 if once else 2), ("reduce-scatter", 1)):
            found[key, whole] = found.get((key, whole), 0) + count
    return found


def traffic(model: Model, cluster: Cluster, plan: Plan, stage: int = 0) -> dict[str, dict]:
    """{axis: {"inside", "between"}}: bytes that a rank of a stage sends in a step.

    inside: over its host's own links. between: its share of what its host sends to others.
    """
    groups, m = links.groups(plan), plan.micro_batches
    groups["data"] = groups["shard"]
    layers, numbers = memory.on_rank(model, plan, stage)
    tokens = plan.micro_batch * model.sequence / plan.context
    number = 4 if plan.precision == "fp32" else 2
    size = number * tokens * model.hidden
    asked_for = sharding.collectives(
        ("ddp", "zero1", "zero2", "hsdp")[plan.stage],
        plan.sharing,
        plan.keep_gathered or plan.pipeline > 1,
        plan.reduce_bytes / number,
        micro_batches=m if plan.each_time else 1,
    )
    forwards = 3 if plan.recompute == "full" else 2  # passes with two all-reduces: and the backward
    heads = model.key_heads / plan.tensor
    keys = context.keys_bytes(tokens * plan.context, heads, model.of_head, number=number)
    neighbours = (stage > 0) + (stage < plan.pipeline - 1)
    routed = experts.rows_bytes(tokens, model.hidden, model.chosen, number=number)
    of, own = number * numbers, layers * model.divided_parameters(plan.tensor, plan.expert)
    shards = [(kind, share) for axis, kind, share in asked_for if axis == "shard"]
    copies = [(kind, share) for axis, kind, share in asked_for if axis == "replicate"]
    asked = {
        "tensor": [("all-reduce", size, 2 * forwards * layers * m)],
        "context": [("all-gather", keys, layers * m), ("reduce-scatter", keys, layers * m)],
        "expert": [("all-to-all", routed, experts.EXCHANGES * layers * m)],
        "data": [(kind, number * (numbers - own) * share, 1) for kind, share in shards],
        "data of experts": [(kind, number * own * share, 1) for kind, share in shards],
        "replicate": [(kind, of * share, 1) for kind, share in copies],
    }
    found = {}
    for axis, items in asked.items():
        group = groups.get(axis) or links.replicas(groups["shard"], plan)
        sums = [links.bytes_sent(kind, of, group, cluster) for kind, of, _ in items]
        found[axis] = {
            where: sum(each[where] * times for each, (*_, times) in zip(sums, items, strict=True))
            for where in ("inside", "between")
        }
    handed = (1 + (neighbours > 1)) * m * size / plan.tensor if neighbours else 0.0
    far = groups["pipeline"].stride >= cluster.per_host
    found["pipeline"] = {"inside": 0.0 if far else handed, "between": handed if far else 0.0}
    return found


def kinds(model: Model, plan: Plan, cluster: Cluster | None = None) -> Table:
    """A line for each kind of rank: how many there are, what they hold by kind, what they send.

    cluster: the GPUs of a published model; a script's ranks need none. Raises ValueError for a plan
    that cannot be.
    """
    if plan.script:
        return _kinds_of_script(model, plan)
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


def _kinds_of_script(model: Model, plan: Plan) -> Table:
    found: dict[tuple, dict] = {}
    lines: dict[tuple, dict] = {}
    part = _parts(model, plan)
    for rank in range(plan.ranks):
        where = plan.stage_of(rank), part(plan.place_of(rank))  # all else is the same on every rank
        if where not in found:
            sizes = memory.rank_memory(model, plan, rank)
            sizes["sent"] = sum(bytes_sent(model, plan, rank).values())
            line = {f"{kind}_bytes": size and round(size) for kind, size in sizes.items()}
            found[where] = lines.setdefault((*line.values(),), {"ranks": 0, "first": rank, **line})
        found[where]["ranks"] += 1
    caption = f"{plan.script}, {plan.ranks:,} ranks, a line for each kind, by formula"
    return Table(list(lines.values()), caption)


def _parts(model: Model, plan: Plan):
    """A function of a rank's place that differs where the parts differ: no rank is looked at."""
    shapes = [shape for layer in memory.layers_of(model, plan, 0) for shape in layer.shapes]
    if plan.script == "zero1":
        sizes = tuple(map(prod, shapes))
        parts = sharding.whole_tensors(sizes, plan.data)
        return lambda place: (sum(sizes[i] for i in parts[place]), len(parts[place]))
    if plan.stage == 3 and plan.tensor == 1:  # a rank with fewer rows, and ranks with none
        full = {rows // ceil(rows / plan.sharing) for rows, *_ in shapes}
        edges = sorted(full | {edge + 1 for edge in full})
        return lambda place: bisect_right(edges, place)
    return lambda place: 0
