"""Seconds of a step, part by part: `step.seconds(shape, cluster, plan, constants)`.

Compute is kernels.py's, or the host's launches where they take longer. Tensor and context
parallelism wait for their collectives in each layer; FSDP's go on beside the compute; a pipeline
waits for its slowest stage and its bubble (bootcamp.costs.pipeline_schedules).
"""

from dataclasses import dataclass
from math import ceil

from bootcamp.costs import context, experts, kernels, links, sharding
from bootcamp.costs.hardware import Cluster
from bootcamp.costs.kernels import Passes, longer
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.setting import Plan
from bootcamp.costs.stacks import Constants

BACKWARD_LAUNCHES = 1.8  # times as long as the forward's: autograd launches about twice the kernels


@dataclass(frozen=True)
class Parts:
    """Seconds of a step that each part adds; together they are the step."""

    compute: float
    host: float
    tensor: float
    context: float
    expert: float
    data: float
    pipeline: float
    bubble: float
    optimizer: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(vars(self).values())


def layer_waits(shape: Model, cluster: Cluster, plan: Plan, c: Constants) -> dict[str, Passes]:
    """{axis: seconds that a layer's passes wait for it}, for one micro-batch."""
    groups = links.groups(plan)
    tokens = plan.micro_batch * shape.sequence / plan.context
    size = 2 * tokens * shape.hidden

    def call(kind, of, axis):
        return links.seconds(kind, of, groups[axis], cluster, c)

    tensor = 2 * call("all-reduce", size, "tensor")
    if plan.asynchronous:  # in as many pieces as ranks, each beside the product before it
        tensor /= plan.tensor
    heads = shape.key_heads / plan.tensor
    keys = context.keys_bytes(tokens * plan.context, heads, shape.of_head, number=2)
    gathered = call("all-gather", keys, "context")
    routed = experts.rows_bytes(tokens, shape.hidden, shape.chosen, number=2)
    expert = 2 * call("all-to-all", routed, "expert") if shape.experts > 1 else 0.0
    return {
        "tensor": Passes(tensor, tensor),
        "context": Passes(gathered, 2 * gathered),
        "expert": Passes(expert, expert),
    }


def recomputed(shape: Model, cluster: Cluster, plan: Plan, c: Constants, forward: float) -> float:
    """Seconds of computing a layer's activations again, out of its forward's."""
    gpu, bandwidth = cluster.gpu, cluster.gpu.hbm * c.memory
    if plan.recompute == "none":
        return 0.0
    if plan.recompute == "full":
        return forward - kernels.last_product(gpu, shape, plan, c) * plan.early_stop
    attention = kernels.attention(gpu, shape, plan, c).forward
    if plan.recompute == "selective":
        return attention
    # attention and every second product are kept, what lies between them is not
    tokens = plan.micro_batch * shape.sequence / plan.context
    between = kernels.between(shape, plan, tokens, bandwidth).forward
    return 0.5 * max(0.0, forward - attention - between) + between


def seconds(shape: Model, cluster: Cluster, plan: Plan, c: Constants) -> Parts:
    """A step's seconds by part. The plan must have passed setting.check."""
    gpu, m = cluster.gpu, plan.micro_batches
    device = kernels.layer(gpu, shape, plan, c)
    waits = layer_waits(shape, cluster, plan, c)
    waited = [sum(axis[i] for axis in waits.values()) for i in (0, 1)]
    launch = c.launch * (0.5 if plan.compiled else 1)
    forward = longer(device.forward + waited[0], launch)
    backward = longer(device.backward + waited[1], BACKWARD_LAUNCHES * launch)
    again = recomputed(shape, cluster, plan, c, forward)
    gather, reduce = sharded(shape, cluster, plan, c)
    regather = 0.0 if plan.keep_gathered else gather
    layer = longer(forward, gather) + longer(backward + again, regather + reduce)
    ends = kernels.head(gpu, shape, plan, c)
    ends = longer(ends + waits["tensor"].forward, c.ends) if shape.vocabulary else 0.0
    first = kernels.embedding(gpu, shape, plan, c)
    deep, shallow = layers_of_stage(shape.layers, plan.pipeline * plan.virtual)
    deep, shallow = deep * plan.virtual, shallow + deep * (plan.virtual - 1)
    hops = links.hand_over(_handed(shape, plan), links.groups(plan)["pipeline"], cluster, c)
    stages = (deep * layer, shallow * layer + first, shallow * layer + ends)
    whole, bubble = pipeline(stages, hops, plan)
    data = gradients(shape, cluster, plan, c, deep * (backward + again))
    update = kernels.ADAM * updated(shape, plan) / (gpu.hbm * c.memory) + c.fixed
    exchanged = {axis: deep * m * sum(passes) for axis, passes in waits.items()}
    exposed = deep * m * (layer - forward - backward - again)
    stalls = deep * m * (forward + backward - sum(device) - sum(waited))
    filling = 2 * (plan.pipeline - 1) * hops[1]
    rest = whole - bubble - filling - sum(exchanged.values()) - exposed - stalls
    return Parts(
        compute=rest,
        host=stalls,
        **exchanged,
        data=exposed + data,
        pipeline=filling,
        bubble=bubble,
        optimizer=update,
    )


def layers_of_stage(layers: int, stages: int) -> tuple[int, int]:
    """Layers of the fullest stage, and of the first and the last.

    Where layers do not divide, embedding and head count as one each (arXiv:2407.21783).
    """
    deep = ceil(layers / stages)
    return deep, deep - 1 if stages > 1 and layers % stages else deep


def pipeline(stages: tuple[float, ...], hops: tuple[float, float], plan: Plan):
    """(seconds of all micro-batches through a pipeline, how much of them is its bubble).

    stages: seconds of both passes of a micro-batch in a middle, the first and the last rank. hops:
    of a hand-over when the pipeline is full, and when it fills or drains. With
    1F1B a step is one micro-batch through every rank, and the slowest rank's period for each other
    one; a rank waits for what it is sent twice in a period, the first and the last once. Several
    stages on a rank shorten the first part (arXiv:2104.04473, section 2.2), and a split backward to
    a third; ZB-V has both (arXiv:2401.10241).
    """
    (middle, first, last), (hop, filling) = stages, hops
    p, m = plan.pipeline, plan.micro_batches
    if p == 1:
        return m * (middle + (first - middle) + (last - middle)), 0.0
    hop *= plan.virtual
    period = max(last + hop, first + hop, middle + 2 * hop if p > 2 else 0.0)
    through = first + middle * (p - 2)
    through /= {"zero-bubble": 3, "zb-v": 6}.get(plan.schedule, plan.virtual)
    filling *= 2 * (p - 1)
    whole = through + last + (m - 1) * period + filling
    return whole, whole - m * max(stages) - filling


def sharded(shape: Model, cluster: Cluster, plan: Plan, c: Constants) -> tuple[float, float]:
    """Seconds in which FSDP gathers a layer, and in which it reduces its gradients; else 0."""
    if not plan.each_time:
        return 0.0, 0.0
    group = links.groups(plan)["shard"]
    numbers = shape.layer_parameters(plan.tensor, plan.expert)
    own = shape.divided_parameters(plan.tensor, plan.expert)
    gather = _exchange("all-gather", 2 * numbers, 2 * own, group, cluster, plan, c)
    wide = plan.reduce_bytes
    return gather, _exchange("reduce-scatter", wide * numbers, wide * own, group, cluster, plan, c)


def gradients(shape: Model, cluster: Cluster, plan: Plan, c: Constants, backward: float) -> float:
    """Seconds that a step waits for gradients, and for parameters that ZeRO has updated.

    FSDP's are counted with the layers: here it waits for embedding and head in each micro-batch,
    and for the rows of HSDP. backward: seconds of the last one, beside which they are reduced.
    """
    groups = links.groups(plan)
    ends = shape.embedding_parameters(plan.tensor) * (1 if shape.tied else 2)
    deep = layers_of_stage(shape.layers, plan.pipeline)[0]
    numbers = ends / (1 if plan.pipeline == 1 else 2 - shape.tied)
    numbers += deep * shape.layer_parameters(plan.tensor, plan.expert)
    own = deep * shape.divided_parameters(plan.tensor, plan.expert)
    strategy = {0: "ddp", 1: "zero1", 2: "zero2", 3: "hsdp"}[plan.stage]
    wide = plan.reduce_bytes / 2
    calls = sharding.collectives(strategy, plan.sharing, plan.pipeline > 1, wide)
    alone = 0.0
    if plan.each_time:
        calls, alone = calls[3:], plan.micro_batches * _ends_alone(ends, cluster, plan, c)
    total = 0.0
    for axis, kind, share in calls:
        size, of_experts = 2 * numbers * share, 2 * own * share
        of_experts *= axis == "shard"  # the rows of HSDP hold the same experts
        total += _exchange(kind, size, of_experts, groups[axis], cluster, plan, c)
    if plan.overlap:
        total = longer(backward, total) - backward
    if plan.pipeline > 1 and shape.tied:  # the first and the last stage share the embedding
        pair = links.Group(2, groups["pipeline"].stride)
        total += links.seconds("all-reduce", 2 * ends, pair, cluster, c)
    return total + alone


def _exchange(kind: str, size: float, of_experts: float, group, cluster, plan, c) -> float:
    """Seconds of a collective of a rank's parameters; an expert has replicas on fewer ranks."""
    rest = links.seconds(kind, size - of_experts, group, cluster, c)
    return rest + links.seconds(kind, of_experts, links.replicas(group, plan), cluster, c)


def _ends_alone(ends: float, cluster: Cluster, plan: Plan, c: Constants) -> float:
    """FSDP gathers the embedding before the first layer, and reduces it after the last backward."""
    group = links.groups(plan)["shard"]
    gather = links.seconds("all-gather", 2 * ends, group, cluster, c)
    return gather + links.seconds("reduce-scatter", plan.reduce_bytes * ends, group, cluster, c)


def updated(shape: Model, plan: Plan) -> float:
    """Parameters that a rank's optimizer updates."""
    ends = shape.embedding_parameters(plan.tensor) * (1 if shape.tied else 2)
    deep = layers_of_stage(shape.layers, plan.pipeline)[0]
    numbers = deep * shape.layer_parameters(plan.tensor, plan.expert)
    numbers += ends / (1 if plan.pipeline == 1 else 2 - shape.tied)
    own = deep * shape.divided_parameters(plan.tensor, plan.expert)
    return (numbers + own * (plan.expert - 1)) / plan.sharing if plan.stage else numbers


def _handed(shape: Model, plan: Plan) -> float:
    """Bytes that a stage hands over: each tensor rank sends its part (arXiv:2104.04473, 4.1)."""
    tokens = plan.micro_batch * shape.sequence / plan.context
    return 2 * tokens * shape.hidden / plan.tensor
