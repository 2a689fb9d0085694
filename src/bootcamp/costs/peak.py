"""What a rank holds at its peak, by kind: `peak.held(shape, plan)`.

States are those of bootcamp.costs.sharding (arXiv:1910.02054), activations those of Korthikanti et
al. (arXiv:2205.05198, equations 1 to 4) for a GPT and counted in the same way for gated MLPs.
Standard library only.
"""

from math import ceil

from bootcamp.costs.setting import Plan
from bootcamp.costs.shapes import Shape
from bootcamp.costs.sharding import FLOAT32, MIXED, rank_bytes
from bootcamp.costs.step import layers_of_stage

# bytes of each score at the peak: in 16 bit and float32; their logarithms or gradients; fused, in
# place (such as Megatron-LM's); eager, a part of the gradients beside them
SCORES = {"fused": 6, "compiled": 12, "eager": 14}


def on_rank(shape: Shape, plan: Plan, stage: int = 0) -> tuple[int, float]:
    """(layers, parameters) of a rank of a pipeline stage: 0 the first, -1 the last."""
    deep, shallow = layers_of_stage(shape.layers, plan.pipeline)
    ends = shape.embedding_parameters(plan.tensor)
    first, last = stage == 0, stage in (-1, plan.pipeline - 1)
    layers = shallow if first or last else deep
    numbers = layers * shape.layer_parameters(plan.tensor, plan.expert)
    if plan.pipeline == 1:
        return layers, numbers + ends * (1 if shape.tied else 2)
    return layers, numbers + (ends if first or last else 0)


def states(parameters: float, plan: Plan, of_experts: float = 0.0) -> dict[str, float]:
    """Bytes of parameters, gradients and optimizer of a rank; exact for the paper's tables.

    of_experts: how many of the parameters are those of experts that data ranks share; fewer ranks
    have their replicas, over which ZeRO shards them.
    """
    each = FLOAT32 if plan.precision == "fp32" else MIXED
    held = rank_bytes(parameters - of_experts, plan.sharing, plan.stage, each)
    own = rank_bytes(of_experts, max(1, plan.sharing // plan.expert), plan.stage, each)
    held = {kind: size + own[kind] for kind, size in held.items()}
    if plan.offload:  # gradients and optimizer lie in the host's memory
        return {"parameters": held["parameters"], "gradients": 0.0, "optimizer": 0.0}
    return held


def deepspeed(stage: int, parameters: float, largest: float, ranks: int, option: str) -> float:
    """Bytes that DeepSpeed's estimators give for a GPU (its docs, code-docs/source/memory.rst).

    largest: parameters of the largest layer, which stage 3 gathers in 32 bit. option: as the docs'
    tables print it, "offload_param=cpu, offload_optimizer=cpu" or "offload none".
    """
    of_optimizer = "offload_optimizer=cpu" in option
    if stage == 2:
        return parameters * (2 if of_optimizer else 4 + 16 / ranks)
    if "offload_param=cpu" in option:
        return 4 * largest
    return 4 * largest + parameters * (2 if of_optimizer else 18) / ranks


def layer_bytes(shape: Shape, plan: Plan, kept: str | None = None) -> float:
    """What a layer's forward keeps of one micro-batch; kept: as Plan.recompute."""
    kept = plan.recompute if kept is None else kept
    t, between = plan.tensor, plan.tensor if plan.sequence else 1
    tokens = plan.micro_batch * shape.sequence / plan.context
    h, inner = shape.hidden, shape.inner * shape.chosen
    if kept == "full":
        return 2 * tokens * h / between
    if kept == "selective op":  # input, queries, values, attention, the first and the last product
        values = shape.key_heads * shape.of_head
        return 2 * tokens * ((h + h) / between + (2 * h + values + inner) / t)
    if shape.gated:  # compiled, the activation's output is computed again with its product
        wide = 3 if plan.compiled else 4
        return 2 * tokens * (4 * h / between + (shape.qkv + h + wide * inner) / t)
    numbers = 10 * h / between + (8 * h + 4 * inner) / t
    if plan.attention != "fused" and kept == "none":
        numbers += 5 * shape.heads * shape.sequence / t
    elif plan.attention == "fused":
        numbers -= 2 * h / between + h / t  # GPTs of today have no dropout, and so no masks
    return tokens * numbers


def in_flight(plan: Plan, stage: int = 0) -> float:
    """Micro-batches of which a stage's rank holds activations at once; stage -1 is the last."""
    p, m, v = plan.pipeline, plan.micro_batches, plan.virtual
    if plan.schedule == "gpipe":
        return m
    if plan.schedule == "zb-v":  # on every rank what 1F1B's first one holds
        return min(m, p)
    below = 1 if stage == -1 else p - stage
    # interleaved, a rank is 2 (p - rank - 1) + (v - 1) p forwards ahead, each of 1/v of its layers
    return min(m, below if v == 1 else (2 * (below - 1) + (v - 1) * p + 1) / v)


def held(shape: Shape, plan: Plan, stage: int = 0) -> dict[str, float]:
    """Bytes of a rank of a pipeline stage by kind, allocated at the peak."""
    layers, numbers = on_rank(shape, plan, stage)
    own = layers * shape.divided_parameters(plan.tensor, plan.expert)
    found = states(numbers, plan, own)
    last = stage in (-1, plan.pipeline - 1) or plan.pipeline == 1
    found["activations"] = layers * in_flight(plan, stage) * layer_bytes(shape, plan)
    if plan.recompute != "none":
        found["recomputed"] = layer_bytes(shape, plan, "none")
    tokens = plan.micro_batch * shape.sequence / plan.context
    if last:
        of_score = SCORES["fused" if plan.fused_loss else "compiled" if plan.compiled else "eager"]
        found["scores"] = tokens * ceil(shape.vocabulary / plan.tensor) * of_score
    if plan.stage == 3:
        layer = shape.layer_parameters(plan.tensor, plan.expert)
        ends = shape.embedding_parameters(plan.tensor) * (1 if shape.tied else 2)
        once = plan.pipeline > 1
        kept, reduced = layers if plan.keep_gathered or once else 2, layers if once else 1
        ends = 0 if once and stage not in (0, plan.pipeline - 1, -1) else ends
        found["gathered"] = 2 * (kept * layer + ends) + plan.reduce_bytes * reduced * layer
    return found


def peak(shape: Shape, plan: Plan, reserved: float) -> float:
    """Bytes that the fullest rank's allocator reserves. reserved: for each byte in use."""
    ends = (0, -1) if plan.pipeline > 1 else (0,)
    return reserved * max(sum(held(shape, plan, stage).values()) for stage in ends)
