"""What each kind of rank holds and sends, at any scale: `ranks.kinds(shape, cluster, plan)`.

Ranks of one pipeline stage hold and send the same, so a kind is a stage. Each has a closed form;
nothing is looped over ranks. Standard library only.
"""

from bootcamp.costs import context, experts, links, peak, sharding
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.setting import Plan, check
from bootcamp.costs.shapes import Shape
from bootcamp.table import Table


def traffic(shape: Shape, cluster: Cluster, plan: Plan, stage: int = 0) -> dict[str, dict]:
    """{axis: {"inside", "between"}}: bytes that a rank of a stage sends in a step.

    inside: over its host's own links. between: its share of what its host sends to others.
    """
    groups, m = links.groups(plan), plan.micro_batches
    groups["data"] = groups["shard"]
    layers, numbers = peak.on_rank(shape, plan, stage)
    tokens = plan.micro_batch * shape.sequence / plan.context
    number = 4 if plan.precision == "fp32" else 2
    size = number * tokens * shape.hidden
    wide = plan.reduce_bytes / number
    strategy = {0: "ddp", 1: "zero1", 2: "zero2", 3: "hsdp"}[plan.stage]
    calls = sharding.collectives(
        strategy,
        plan.sharing,
        plan.keep_gathered or plan.pipeline > 1,
        wide,
        micro_batches=m if plan.each_time else 1,
    )
    forwards = 3 if plan.recompute == "full" else 2  # passes with two all-reduces: and the backward
    heads = shape.key_heads / plan.tensor
    keys = context.keys_bytes(tokens * plan.context, heads, shape.of_head, number=number)
    neighbours = (stage > 0) + (stage not in (-1, plan.pipeline - 1)) if plan.pipeline > 1 else 0
    routed = experts.rows_bytes(tokens, shape.hidden, shape.chosen, number=number)
    of, own = number * numbers, layers * shape.divided_parameters(plan.tensor, plan.expert)
    shards = [(kind, share) for axis, kind, share in calls if axis == "shard"]
    asked = {
        "tensor": [("all-reduce", size, 2 * forwards * layers * m)],
        "context": [("all-gather", keys, layers * m), ("reduce-scatter", keys, layers * m)],
        "expert": [("all-to-all", routed, experts.EXCHANGES * layers * m)],
        "data": [(kind, number * (numbers - own) * share, 1) for kind, share in shards],
        "data of experts": [(kind, number * own * share, 1) for kind, share in shards],
        "replicate": [(kind, of * share, 1) for axis, kind, share in calls if axis == "replicate"],
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


def kinds(shape: Shape, cluster: Cluster, plan: Plan) -> Table:
    """A line for each kind of rank: how many there are, what they hold by kind, what they send.

    Raises ValueError for a plan that cannot be.
    """
    check(shape, cluster, plan)
    lines = []
    for stage in range(plan.pipeline):
        held = peak.held(shape, plan, stage)
        sent = traffic(shape, cluster, plan, stage)
        line = {"stage": stage, "ranks": plan.ranks // plan.pipeline}
        line |= {f"{kind}_bytes": round(size) for kind, size in held.items()}
        line["peak_bytes"] = round(sum(held.values()))
        for where in ("inside", "between"):
            line[f"sent_{where}_bytes"] = round(sum(axis[where] for axis in sent.values()))
        lines.append(line)
    return Table(lines, f"{plan.ranks:,} ranks, a line for each kind, by formula")
