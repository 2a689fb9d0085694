"""What a rank holds, by kind: `rank_memory(model, plan, rank)`.

States are those of bootcamp.costs.sharding (arXiv:1910.02054), activations those of Korthikanti et
al. (arXiv:2205.05198, equations 1 to 4) for a GPT and counted in the same way for gated MLPs. For
this course's scripts (Plan.script) all is exact: parameters, gradients, the optimizer's state, and
the activations when a backward begins, in float32.
"""

from math import ceil, prod

from bootcamp.costs import layer_cut, model_shapes, pipeline_schedules, sharding
from bootcamp.costs.model_shapes import Layer, Model
from bootcamp.costs.setting import SPLIT, UNITS, Plan
from bootcamp.costs.sharding import DEEPSPEED_FLOAT32, FLOAT32, MIXED, rank_bytes
from bootcamp.costs.step import layers_of_stage

NUMBER, INTEGER = 4, 8  # bytes, in this course's scripts
RECOMPUTED = {"inputs": 1, "products": 10}  # numbers a token and width that a block keeps
# bytes of each score at the peak: in 16 bit and float32; their logarithms or gradients; fused, in
# place (such as Megatron-LM's); eager, a part of the gradients beside them
SCORES = {"fused": 6, "compiled": 12, "eager": 14}


def rank_memory(model: Model, plan: Plan, rank: int = 0) -> dict[str, float]:
    """Count a rank's bytes by kind: allocated at the peak; of scripts as the module says.

    activations: None for scripts, models and schedules without a formula.
    """
    if plan.script:
        return {**_script_states(model, plan, rank), "activations": _kept(model, plan, rank)}
    stage = plan.stage_of(rank)
    layers, numbers = on_rank(model, plan, stage)
    own = layers * model.divided_parameters(plan.tensor, plan.expert)
    found = states(numbers, plan, own)
    found["activations"] = layers * in_flight(plan, stage) * layer_bytes(model, plan)
    if plan.recompute != "none":
        found["recomputed"] = layer_bytes(model, plan, "none")
    tokens = plan.micro_batch * model.sequence / plan.context
    if stage == plan.pipeline - 1:
        of_score = SCORES["fused" if plan.fused_loss else "compiled" if plan.compiled else "eager"]
        found["scores"] = tokens * ceil(model.vocabulary / plan.tensor) * of_score
    if plan.stage == 3:
        layer = model.layer_parameters(plan.tensor, plan.expert)
        ends = model.embedding_parameters(plan.tensor) * (1 if model.tied else 2)
        once = plan.pipeline > 1
        kept, reduced = layers if plan.keep_gathered or once else 2, layers if once else 1
        ends = 0 if once and stage not in (0, plan.pipeline - 1) else ends
        found["gathered"] = 2 * (kept * layer + ends) + plan.reduce_bytes * reduced * layer
    return found


def fullest(model: Model, plan: Plan) -> dict[str, float]:
    """Return the memory of the rank that holds most: in the first or the last stage."""
    ends = (rank_memory(model, plan, rank) for rank in (0, plan.ranks - 1))
    return max(ends, key=lambda held: sum(held.values()))


def peak(model: Model, plan: Plan, reserved: float) -> float:
    """Bytes that the fullest rank's allocator reserves. reserved: for each byte in use."""
    return reserved * sum(fullest(model, plan).values())


def on_rank(model: Model, plan: Plan, stage: int = 0) -> tuple[int, float]:
    """(layers, parameters) of a rank of a pipeline stage."""
    deep, shallow = layers_of_stage(model.layers, plan.pipeline)
    ends = model.embedding_parameters(plan.tensor)
    at_end = stage in (0, plan.pipeline - 1)
    layers = shallow if at_end else deep
    numbers = layers * model.layer_parameters(plan.tensor, plan.expert)
    if plan.pipeline == 1:
        return layers, numbers + ends * (1 if model.tied else 2)
    return layers, numbers + (ends if at_end else 0)


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


def layer_bytes(model: Model, plan: Plan, kept: str | None = None, number: int = 2) -> float:
    """What a layer's forward keeps of one micro-batch.

    kept: as Plan.recompute. number: bytes of an activation; masks of dropout have 1.
    """
    kept = plan.recompute if kept is None else kept
    t, between = plan.tensor, plan.tensor if plan.sequence else 1
    tokens = plan.micro_batch * model.sequence / plan.context
    h, inner = model.hidden, model.inner * model.chosen
    if kept == "full":
        return number * tokens * h / between
    if kept == "selective op":  # input, queries, values, attention, the first and the last product
        values = model.key_heads * model.of_head
        return number * tokens * ((h + h) / between + (2 * h + values + inner) / t)
    if model.gated:  # compiled, the activation's output is computed again with its product
        wide = 3 if plan.compiled else 4
        return number * tokens * (4 * h / between + (model.qkv + h + wide * inner) / t)
    held = (4 * number + 2) * h / between + number * (4 * h + 2 * inner) / t
    if plan.attention != "fused" and kept == "none":
        held += (2 * number + 1) * model.heads * model.sequence / t
    elif plan.attention == "fused":
        held -= 2 * h / between + h / t  # GPTs of today have no dropout, and so no masks
    return tokens * held


def in_flight(plan: Plan, stage: int = 0) -> float:
    """Micro-batches of which a stage's rank holds activations at once."""
    p, m, v = plan.pipeline, plan.micro_batches, plan.virtual
    if plan.schedule == "gpipe":
        return m
    if plan.schedule == "zb-v":  # on every rank what 1F1B's first one holds
        return min(m, p)
    below = p - stage
    # interleaved, a rank is 2 (p - rank - 1) + (v - 1) p forwards ahead, each of 1/v of its layers
    return min(m, below if v == 1 else (2 * (below - 1) + (v - 1) * p + 1) / v)


# this course's scripts


def stages_of(model: Model, plan: Plan, rank: int) -> list[list[Layer]]:
    """Return the layers of each of a rank's stages in the pipeline."""
    edges = layer_cut.equal(len(model.parts), plan.pipeline * plan.virtual)
    places = pipeline_schedules.stages_of_rank(plan.schedule, plan.stage_of(rank), plan.pipeline)
    return [model.parts[edges[i] : edges[i + 1]] for i in places]


def layers_of(model: Model, plan: Plan, rank: int) -> list[Layer]:
    """Return the layers of all stages of a rank."""
    return [layer for stage in stages_of(model, plan, rank) for layer in stage]


def _script_states(model: Model, plan: Plan, rank: int) -> dict[str, float]:
    p, layers, place = plan, layers_of(model, plan, rank), plan.place_of(rank)
    shapes = [shape for layer in layers for shape in layer.shapes]
    means = 2 if p.optimizer == "adamw" else 1
    counts = NUMBER if p.optimizer == "adamw" else 0  # AdamW's step, for each tensor it knows
    sizes = tuple(map(prod, shapes))
    if p.tensor > 1:
        own = sum(layer.parameters(p.tensor) for layer in layers)
        own *= NUMBER / (p.sharing if p.stage else 1)
        return {
            "parameters": own,
            "gradients": own,
            "optimizer": means * own + counts * len(shapes),
        }
    if p.script == "zero":
        return _deepspeed(p, shapes, means, counts)
    if p.stage == 3:  # room for the largest part, AdamW's state of the own part
        most = NUMBER * sharding.rows_of_rank(shapes, p.sharing)
        own = NUMBER * means * sharding.rows_of_rank(shapes, p.sharing, place)
        return {"parameters": most, "gradients": most, "optimizer": own + counts * len(shapes)}
    found = rank_bytes(sum(sizes), 1, 0, {**FLOAT32, "optimizer": NUMBER * means})
    mine = sharding.whole_tensors(sizes, p.data)[place] if p.stage == 1 else range(len(sizes))
    own = NUMBER * means * sum(sizes[i] for i in mine)
    return {**found, "optimizer": own + counts * len(mine)}


def _deepspeed(plan: Plan, shapes: list, means: int, counts: int) -> dict[str, float]:
    """DeepSpeed's own layouts: a row of all parameters, or each by itself; a copy of its part."""
    numbers = sum(map(prod, shapes))
    if not plan.stage:
        whole = NUMBER * numbers
        state = {"parameters": whole, "gradients": whole}
        return {**state, "optimizer": means * whole + counts * len(shapes)}
    flat = sharding.flat_part(numbers, plan.data)
    part = sharding.parts_one_by_one(shapes, plan.data) if plan.stage == 3 else flat
    each = {**DEEPSPEED_FLOAT32, "optimizer": NUMBER * (means + 1)}
    found = rank_bytes(plan.data * part, plan.data, plan.stage, each)
    return {**found, "gradients": NUMBER * part, "optimizer": found["optimizer"] + counts}


def forward_bytes(model: Model, plan: Plan, layers: list[Layer]) -> float:
    """What the forward of one micro-batch keeps of these layers, in float32."""
    numbers = 0.0
    for layer in layers:
        if plan.recompute in RECOMPUTED and layer.name.startswith("block"):
            numbers += RECOMPUTED[plan.recompute] * model.hidden * model.sequence
        else:
            numbers += layer.kept_numbers(plan.tensor, plan.sequence)
    return NUMBER * plan.micro_batch * numbers


def _kept(model: Model, plan: Plan, rank: int = 0) -> float | None:
    """Bytes that a rank's forward has made and that live when a backward begins, at their most.

    With the batch itself, and what FSDP has gathered and not freed.
    """
    p = plan
    if model.parts[0].kept is None or p.schedule in SPLIT or p.script == "3d":
        return None
    if p.pipeline > 1:
        return _in_pipeline(model, p, rank)
    total = forward_bytes(model, p, model.parts) + _batch(model, p)
    total += _targets(model, p) + _positions(model)
    total += 12 if p.micro_batches == 1 else 20  # the loss, its weight, its gradient; their mean
    return total + gathered(model, p)


def _in_pipeline(model: Model, plan: Plan, rank: int) -> float:
    """Of a rank of a pipeline: the micro-batches in flight, and what torch still holds of others.

    1F1B holds the gradient that it sent last, and the last output but one that it sent before its
    first backward. The head's scores are held beside their logarithms.
    """
    p, stage, stages = plan, plan.stage_of(rank), stages_of(model, plan, rank)
    first, last = stage == 0, model.parts[-1] in stages[-1]
    bytes_of = [forward_bytes(model, p, layers) for layers in stages]
    scores = NUMBER * model_shapes.VOCABULARY * _scored(model, p)
    m, border = p.micro_batches, border_bytes(model, p)
    total = _batch(model, p)
    if p.virtual > 1:
        of_last = (scores + _targets(model, p)) * last
        return total + _interleaved(p, stage, bytes_of, of_last, border)
    flight = m if p.schedule == "gpipe" else min(m, p.pipeline - stage)
    total += flight * (sum(bytes_of) + _positions(model) * first)
    if last:
        losses = NUMBER * (m + flight + 1)
        total += flight * (scores + _targets(model, p)) + losses
    if p.schedule == "1f1b":
        total += border * (not first and m > flight)
        total += border * (not last and flight > 1 and m - flight > flight - 2)
    return total


def _interleaved(p: Plan, stage: int, bytes_of: list, of_last: float, border: int) -> float:
    """Of a rank with several stages. torch holds what it has sent until the step ends.

    bytes_of: of each stage's forward. of_last: what the last stage holds of each micro-batch too.
    """
    places = pipeline_schedules.stages_of_rank(p.schedule, stage, p.pipeline)
    end = p.pipeline * p.virtual - 1
    kept = dict(zip(places, bytes_of, strict=True))
    kept |= {end: kept[end] + of_last} if end in kept else {}
    now = most = 0.0
    for kind, place, _ in pipeline_schedules.plan(p.schedule, p.pipeline, p.micro_batches)[stage]:
        most = max(most, now) if kind == "B" else most
        now += kept[place] if kind == "F" else border * ((place > 0) + (place < end))
        now -= kept[place] if kind == "B" else 0
    return most


def gathered(model: Model, plan: Plan) -> float:
    """Bytes of parameters that FSDP has gathered and not freed when the backward begins."""
    if plan.tensor > 1 and plan.stage == 3:
        ends = model.parts[0], model.parts[-1]
        return NUMBER * sum(layer.parameters(plan.tensor) for layer in ends)
    if plan.script not in UNITS:
        return 0
    layers = model.parts if plan.keep_gathered else model.parts[-1:]
    return sum(gathered_layer(layer, plan.sharing) for layer in layers)


def gathered_layer(layer: Layer, ranks: int) -> int:
    """Bytes of a gathered layer, each part as large as the largest."""
    return NUMBER * ranks * sharding.rows_of_rank(layer.shapes, ranks)


def border_bytes(model: Model, plan: Plan) -> int:
    """Bytes of one micro-batch between two stages of a pipeline, either way."""
    return NUMBER * _scored(model, plan) * model.hidden


def _scored(model: Model, plan: Plan) -> int:
    """Predictions of a micro-batch."""
    return plan.micro_batch * (model.sequence if model.kind == "gpt" else 1)


def _batch(model: Model, plan: Plan) -> int:
    """Windows of text with the byte behind them, as integers; targets are a view of them."""
    return INTEGER * (plan.batch // plan.data) * (model.sequence + 1)


def _targets(model: Model, plan: Plan) -> int:
    """The GPT's targets in one row: a copy."""
    return INTEGER * _scored(model, plan) if model.kind == "gpt" else 0


def _positions(model: Model) -> int:
    return INTEGER * model.sequence if model.kind == "gpt" else 0
