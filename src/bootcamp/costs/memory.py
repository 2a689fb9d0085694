"""Bytes that a rank holds, by kind: `rank_memory(model, plan, rank)`, and a GPT `by_strategy`.

Activations are those of Korthikanti et al. (arXiv:2205.05198, equations 1 to 4) for a GPT, and
counted in the same way for gated MLPs. For this course's scripts (Plan.script) all is exact:
parameters, gradients, optimizer, and the activations when a backward begins, in float32.
"""

from math import ceil, prod

from bootcamp.costs import layer_cut, model_shapes, pipeline_schedules, published, sharding
from bootcamp.costs.model_shapes import FLOAT32_BYTES, VOCABULARY, Layer, Model
from bootcamp.costs.plans import UNITS, Plan
from bootcamp.costs.sharding import FLOAT32, MIXED, rank_bytes

INTEGER_BYTES = 8  # of a token in this course's scripts
RECOMPUTED = {"inputs": 1, "products": 10}  # numbers that a block keeps, per token and hidden unit
# bytes of each of the head's scores at the peak: in 16 bit and in float32, where a fused loss works
# in place (as Megatron-LM's); compiled, logarithms or gradients beside them; eager, a part of both
SCORES = {"fused": 6, "compiled": 12, "eager": 14}
PRECISIONS = {"bf16 mixed": MIXED, "fp32": FLOAT32}
KEPT = {"all": "none", "all but attention's matrix": "selective", "each layer's input": "full"}


def rank_memory(model: Model, plan: Plan, rank: int = 0) -> dict[str, float]:
    """Count a rank's bytes by kind: allocated at the peak; of scripts as the module says.

    activations: None for scripts, models and schedules without a formula.
    """
    if plan.script:
        found = _script_states(model, plan, rank)
        return found | {"activations": _script_activations(model, plan, rank)}
    stage = plan.stage_of(rank)
    layers, numbers = count_on_rank(model, plan, stage)
    found = states(numbers, plan, layers * model.shared_expert_parameters(plan.tensor, plan.expert))
    number = FLOAT32_BYTES if plan.precision == "fp32" else 2
    found["activations"] = layers * in_flight(plan, stage) * layer_bytes(model, plan, None, number)
    if plan.recompute != "none":
        found["recomputed"] = layer_bytes(model, plan, "none", number)
    if stage == plan.pipeline - 1:
        tokens = plan.micro_batch * model.sequence / plan.context
        of_score = SCORES["fused" if plan.fused_loss else "compiled" if plan.compile else "eager"]
        found["scores"] = tokens * ceil(model.vocabulary / plan.tensor) * of_score
    if plan.stage == 3:
        layer = model.block.parameters(plan.tensor, plan.expert)
        ends = 0 if 0 < stage < plan.pipeline - 1 else model.end_parameters(plan.tensor)
        once = plan.pipeline > 1
        kept, reduced = layers if plan.keep_gathered or once else 2, layers if once else 1
        found["gathered"] = 2 * (kept * layer + ends) + plan.reduce_bytes * reduced * layer
    return found


def find_fullest_rank(model: Model, plan: Plan) -> dict[str, float]:
    """Return the memory of the rank that holds most: in the first or the last stage."""
    ends = (rank_memory(model, plan, rank) for rank in (0, plan.ranks - 1))
    return max(ends, key=lambda held: sum(held.values()))


def count_on_rank(model: Model, plan: Plan, stage: int = 0) -> tuple[int, float]:
    """Count (layers, parameters) of a rank of a pipeline stage."""
    deep, shallow = layer_cut.layers_of_stage(model.layers, plan.pipeline)
    at_end = stage in (0, plan.pipeline - 1)
    layers = shallow if at_end else deep
    alone, part = plan.pipeline == 1, model.embedding_parameters(plan.tensor)
    ends = model.end_parameters(plan.tensor) if alone else at_end * part
    return layers, layers * model.block.parameters(plan.tensor, plan.expert) + ends


def states(parameters: float, plan: Plan, of_experts: float = 0.0) -> dict[str, float]:
    """Count the bytes of a rank's parameters, gradients and optimizer (arXiv:1910.02054).

    of_experts: of parameters, those of experts that data ranks share; fewer ranks have replicas.
    """
    each = FLOAT32 if plan.precision == "fp32" else MIXED
    held = rank_bytes(parameters - of_experts, plan.sharing, plan.stage, each)
    own = rank_bytes(of_experts, max(1, plan.sharing // plan.expert), plan.stage, each)
    held = {kind: size + own[kind] for kind, size in held.items()}
    # offloaded, gradients and optimizer lie in the host's memory
    return held | {"gradients": 0.0, "optimizer": 0.0} if plan.offload else held


def deepspeed(stage: int, parameters: float, largest: float, ranks: int, offload: bool) -> float:
    """Return the bytes that DeepSpeed's estimators give for a GPU (code-docs/source/memory.rst).

    largest: parameters of the largest layer. offload: of the optimizer's state.
    """
    if stage == 2:
        return parameters * (2 if offload else 4 + 16 / ranks)
    return 4 * largest + parameters * (2 if offload else 18) / ranks


def layer_bytes(model: Model, plan: Plan, kept: str | None = None, number: int = 2) -> float:
    """Count the bytes that a layer's forward keeps of one micro-batch.

    kept: as Plan.recompute. number: bytes of an activation; masks of dropout have 1.
    """
    kept = plan.recompute if kept is None else kept
    t, between = plan.tensor, plan.tensor if plan.sequence_parallel else 1
    tokens = plan.micro_batch * model.sequence / plan.context
    h, inner = model.hidden, model.inner * model.chosen
    if kept == "full":
        return number * tokens * h / between
    if kept == "selective op":  # input, queries, values, attention, the first and the last product
        values = model.key_heads * model.width_of_head
        return number * tokens * ((h + h) / between + (2 * h + values + inner) / t)
    if model.gated:  # compiled, the activation's output is computed again with its product
        wide = 3 if plan.compile else 4
        return number * tokens * (4 * h / between + (model.qkv_width + h + wide * inner) / t)
    held = (4 * number + 2) * h / between + number * (4 * h + 2 * inner) / t
    if plan.attention in ("softmax", "unfused"):
        held += (kept == "none") * (2 * number + 1) * model.heads * model.sequence / t
    else:
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


# A published GPT, by strategy


def by_strategy(
    model: Model, ranks: int, shard: int, precision: str, samples: int, kept: str
) -> dict[str, dict[str, float] | str]:
    """Return {strategy: bytes of one rank by kind, or a sentence on why these ranks can't}.

    shard: the ranks of a row, for HSDP. samples: of one forward, on each rank where they share the
    batch, on all together where they share the model. kept: of KEPT. A pipeline's rank is its
    first, with activations of as many micro-batches as there are stages (1F1B).
    """

    def row(sharing: int = 1, stage: int = 0, tensor: int = 1, stages: int = 1) -> dict:
        deep = ceil(model.layers / stages)
        share = model.count_parameters(tensor, deep) / model.count_parameters()
        states = rank_bytes(share * model.parameters, sharing, stage, PRECISIONS[precision])
        each = activation_bytes(model, samples, precision, kept, tensor)
        return states | {"activations": each * deep * stages / model.layers}

    rows, makes = {"one device": row()}, "rank makes" if ranks == 1 else "ranks make"
    for stage, name in enumerate(("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3 = FSDP")):
        rows[name] = row(ranks, stage)
    hsdp, tensor, pipeline = f"HSDP, rows of {shard}", "tensor parallel", "pipeline, first stage"
    rows[hsdp] = f"{ranks} {makes} no rows of {shard}" if ranks % shard else row(shard, 3)
    divides, deep_enough = model.heads % ranks == 0, model.layers >= ranks
    no_heads = f"{model.heads} heads do not divide over {ranks} ranks"
    no_stages = f"{model.layers} layers do not make {ranks} stages"
    rows[tensor] = row(tensor=ranks) if divides else no_heads
    rows[pipeline] = row(stages=ranks) if deep_enough else no_stages
    return rows


def activation_bytes(
    model: Model, samples: int, precision: str = "bf16 mixed", kept: str = "all", tensor: int = 1
) -> float:
    """Count the bytes that the forward of `samples` keeps, on one of `tensor` ranks.

    For each layer s b h (10 + 24/t + 5 a s/(h t)) bytes in 16 bit; without attention's matrix the
    last term is gone; with each layer's input alone it is 2 s b h, and the layer that is being
    recomputed. Embedding and output: section 4.3, with scores in 32 bit.
    """
    plan = Plan(tensor=tensor, micro_batch=samples, attention="unfused")
    tokens, number = samples * model.sequence, PRECISIONS[precision]["parameters"]
    total = model.layers * layer_bytes(model, plan, KEPT[kept], number)
    total += tokens * (model.hidden * (1 + 2 * number) + 4 * model.vocabulary / tensor)
    again = layer_bytes(model, plan, "selective", number) if KEPT[kept] == "full" else 0
    return total + again


def gpu_memory() -> dict[str, float]:
    """Return {the name of a GPU with this memory: GB}."""
    return {row["gpu"].split()[0]: float(row["gb"]) for row in published.table("gpu_memory")}


def course_gpt_needs() -> dict[str, list[tuple[float, float]]]:
    """Return {words: [(parameters, GB)]} of the course's larger GPTs, float32 with AdamW."""
    needs = {"state alone": [], "state and 1 sample": [], "state and 8 samples": []}
    for size in list(model_shapes.GPT)[1:]:
        gpt = model_shapes.course_model("gpt", size)
        for samples, points in zip((0, 1, 8), needs.values(), strict=True):
            kept = forward_bytes(gpt, Plan(micro_batch=samples), gpt.parts)
            held = sum(FLOAT32.values()) * gpt.parameters + kept
            points.append((gpt.parameters, held / 1e9))
    return needs


# This course's scripts


def stages_of(model: Model, plan: Plan, rank: int) -> dict[int, tuple[Layer, ...]]:
    """Return {stage: its layers} of the stages that a rank has in the pipeline."""
    edges = layer_cut.equal(len(model.parts), plan.pipeline * plan.virtual)
    places = pipeline_schedules.stages_of_rank(plan.schedule, plan.stage_of(rank), plan.pipeline)
    return {place: model.parts[edges[place] : edges[place + 1]] for place in places}


def layers_of(model: Model, plan: Plan, rank: int) -> list[Layer]:
    return [layer for layers in stages_of(model, plan, rank).values() for layer in layers]


def _script_states(model: Model, plan: Plan, rank: int) -> dict[str, float]:
    p, layers, place = plan, layers_of(model, plan, rank), plan.place_of(rank)
    shapes = [shape for layer in layers for shape in layer.shapes]
    sizes = tuple(map(prod, shapes))
    adam, tensors = p.optimizer != "sgd", len(shapes)
    means = 2 if adam else 1
    if p.tensor > 1:
        held = sum(layer.parameters(p.tensor) for layer in layers) / (p.sharing if p.stage else 1)
        gradients = updated = held
    elif p.script == "zero" and p.stage:  # DeepSpeed updates a copy of its part, as one tensor
        flat = sharding.flat_part(sum(sizes), p.data)
        part = sharding.parts_one_by_one(shapes, p.data) if p.stage == 3 else flat
        held = part if p.stage == 3 else p.data * part
        gradients = updated = part
        means, tensors = means + 1, 1
    elif p.stage == 3:  # room for the largest part, the optimizer's state of the own part
        held = gradients = sharding.rows_of_rank(shapes, p.sharing)
        updated = sharding.rows_of_rank(shapes, p.sharing, place)
    else:
        held = gradients = updated = sum(sizes)
        if p.stage == 1:
            mine = sharding.whole_tensors(sizes, p.data)[place]
            updated, tensors = sum(sizes[i] for i in mine), len(mine)
    numbers = {"parameters": held, "gradients": gradients}
    numbers["optimizer"] = means * updated + adam * tensors  # it counts each tensor's steps
    return {kind: FLOAT32_BYTES * count for kind, count in numbers.items()}


def _script_activations(model: Model, plan: Plan, rank: int) -> float | None:
    """Bytes that the forward has made and that live when a backward begins, at their most."""
    p, m, stage = plan, plan.micro_batches, plan.stage_of(rank)
    known = p.schedule in ("gpipe", "1f1b", "interleaved") and p.script != "3d"
    if model.parts[0].kept is None or not known:
        return None
    # windows of text with the byte behind them, as integers; targets are a view of them
    total = INTEGER_BYTES * (p.batch // p.data) * (model.sequence + 1)
    is_gpt = model.kind == "gpt"  # it makes positions, and copies its targets into one row
    positions, targets = (INTEGER_BYTES * is_gpt * n for n in (model.sequence, _scored(model, p)))
    if p.pipeline == 1:
        total += forward_bytes(model, p, model.parts) + positions + targets + gathered(model, p)
        return total + (12 if m == 1 else 20)  # the loss, its weight, its gradient; their mean
    first, last, flight = stage == 0, stage == p.pipeline - 1, in_flight(p, stage)
    total += pipeline_bytes(model, p, rank) + flight * (positions * first + targets * last)
    total += last * FLOAT32_BYTES * (m + flight + 1)  # the losses
    if p.schedule == "1f1b":  # torch holds the gradient that it sent last, and the last output but
        border = border_bytes(model, p)  # one that it sent before its first backward
        total += border * (not first and m > flight)
        total += border * (not last and flight > 1 and m - flight > flight - 2)
    return total


def forward_bytes(model: Model, plan: Plan, layers: tuple[Layer, ...]) -> float:
    """Bytes that the forward of one micro-batch keeps of these layers, in float32."""
    numbers = 0.0
    for layer in layers:
        if plan.recompute in RECOMPUTED and layer.name.startswith("block"):
            numbers += RECOMPUTED[plan.recompute] * model.hidden * model.sequence
        else:
            numbers += layer.kept_numbers(plan.tensor, plan.sequence_parallel)
    return FLOAT32_BYTES * plan.micro_batch * numbers


def pipeline_bytes(model: Model, plan: Plan, rank: int) -> float:
    """Bytes that a pipeline's rank holds for its backwards at most, after any of its actions.

    The head's scores are held beside their logarithms. Gradients wait from half I to half W, which
    stage 0 has not. Except under 1F1B, torch keeps what a rank has sent until the step ends.
    """
    border, end = border_bytes(model, plan), plan.pipeline * plan.virtual - 1
    stays, kept = border * (plan.schedule != "1f1b"), {}
    for place, layers in stages_of(model, plan, rank).items():
        scores = FLOAT32_BYTES * VOCABULARY * _scored(model, plan) * (place == end)
        blocks = sum(layer.name.startswith("block") for layer in layers)
        kept[place] = pipeline_schedules.Kept(
            whole=forward_bytes(model, plan, layers) + scores,
            between=border * (11 * blocks + 2 * (place == end)) * (place > 0),
            output=stays * (place < end),
            gradient=stays * (place > 0),
        )
    order = pipeline_schedules.plan(plan.schedule, plan.pipeline, plan.micro_batches)
    return pipeline_schedules.most_held_bytes(order[plan.stage_of(rank)], kept)


def gathered(model: Model, plan: Plan) -> float:
    """Bytes of parameters that FSDP has gathered and not freed when the backward begins."""
    if plan.stage == 3 and (plan.tensor > 1 or plan.script == "fsdp_tp"):
        ends = model.parts[0], model.parts[-1]
        return FLOAT32_BYTES * sum(layer.parameters(plan.tensor) for layer in ends)
    if plan.script not in UNITS:
        return 0
    layers = model.parts if plan.keep_gathered else model.parts[-1:]
    return sum(gathered_layer(layer, plan.sharing) for layer in layers)


def gathered_layer(layer: Layer, ranks: int) -> int:
    """Bytes of a gathered layer, each part as large as the largest."""
    return FLOAT32_BYTES * ranks * sharding.rows_of_rank(layer.shapes, ranks)


def border_bytes(model: Model, plan: Plan) -> int:
    """Bytes of one micro-batch between two stages of a pipeline, either way."""
    return FLOAT32_BYTES * _scored(model, plan) * model.hidden


def _scored(model: Model, plan: Plan) -> int:
    """Count the predictions of a micro-batch."""
    return plan.micro_batch * (model.sequence if model.kind == "gpt" else 1)


def data_parallel(rank: dict, devices: int, outputs: float) -> dict[str, dict[str, float]]:
    """Bytes that a step of nn.DataParallel puts on each device, and DDP: not all at one moment.

    rank: the record of one process with the same global batch. outputs: bytes of the model's, which
    count twice, as log-softmax, which the loss keeps, and as gradient.
    """
    model = {"parameters": rank["parameter_bytes"], "gradients": rank["gradient_bytes"]}
    state = {"optimizer state": rank["optimizer_bytes"]}
    share = {"activations": (rank["activation_bytes"] - outputs) / devices}  # without log-softmax
    return {
        "DataParallel, device 0": model | state | share | {"outputs": 2 * outputs},
        "DataParallel, each other": model | share | {"outputs": outputs / devices},
        "DDP, each rank": model | state | share | {"outputs": 2 * outputs / devices},
    }
