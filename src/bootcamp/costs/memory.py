"""What a rank holds, by kind: `rank_memory(model, plan, rank)`, and a GPT `by_strategy`.

States are those of bootcamp.costs.sharding (arXiv:1910.02054), activations those of Korthikanti et
al. (arXiv:2205.05198, equations 1 to 4) for a GPT and counted in the same way for gated MLPs. For
this course's scripts (Plan.script) all is exact: parameters, gradients, the optimizer's state, and
the activations when a backward begins, in float32.
"""

from math import ceil, prod

from bootcamp.costs import layer_cut, model_shapes, pipeline_schedules, published, sharding
from bootcamp.costs.model_shapes import NUMBER, VOCABULARY, Layer, Model
from bootcamp.costs.plans import UNITS, Plan
from bootcamp.costs.sharding import FLOAT32, MIXED, rank_bytes
from bootcamp.costs.step import layers_of_stage

INTEGER = 8  # bytes, in this course's scripts
RECOMPUTED = {"inputs": 1, "products": 10}  # numbers a token and width that a block keeps
# bytes of each score at the peak: in 16 bit and float32; their logarithms or gradients; fused, in
# place (such as Megatron-LM's); eager, a part of the gradients beside them
SCORES = {"fused": 6, "compiled": 12, "eager": 14}
PRECISIONS = {"bf16 mixed": MIXED, "fp32": FLOAT32}
KEPT = {"all": "none", "all but attention's matrix": "selective", "each layer's input": "full"}


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
    # offloaded, gradients and optimizer lie in the host's memory
    return held | {"gradients": 0.0, "optimizer": 0.0} if plan.offload else held


def deepspeed(stage: int, parameters: float, largest: float, ranks: int, option: str) -> float:
    """Bytes that DeepSpeed's estimators give for a GPU (its docs, code-docs/source/memory.rst).

    largest: parameters of the largest layer. option: as the docs' tables print it, such as
    "offload_param=cpu, offload_optimizer=cpu".
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


# A published GPT, by strategy


def by_strategy(
    model: Model, ranks: int, shard: int, precision: str, samples: int, kept: str
) -> dict[str, dict[str, float] | str]:
    """{strategy: bytes of one rank by kind, or a sentence on why these ranks can't}.

    shard: the ranks of a row, for HSDP. samples: of one forward, on each rank where they share the
    batch, on all together where they share the model. kept: of KEPT. A pipeline's rank is its
    first, with activations of as many micro-batches as there are stages (1F1B).
    """
    activations = activation_bytes(model, samples, precision, kept)

    def row(ranks: int, stage: int, share: float = 1.0, kept: float = activations) -> dict:
        states = rank_bytes(share * model.parameters, ranks, stage, PRECISIONS[precision])
        return {**states, "activations": kept}

    names = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3 = FSDP")
    rows = {"one device": row(1, 0)}
    rows |= {name: row(ranks, stage) for stage, name in enumerate(names)}
    makes = "rank makes" if ranks == 1 else "ranks make"
    rows[f"HSDP, rows of {shard}"] = (
        f"{ranks} {makes} no rows of {shard}" if ranks % shard else row(shard, 3)
    )
    tensor, pipeline = "tensor parallel", "pipeline, first stage"
    rows[tensor] = f"{model.heads} heads do not divide over {ranks} ranks"
    if model.heads % ranks == 0:
        own = activation_bytes(model, samples, precision, kept, ranks)
        rows[tensor] = row(1, 0, model.counted(ranks) / model.counted(), own)
    rows[pipeline] = f"{model.layers} layers do not make {ranks} stages"
    if model.layers >= ranks:
        deep = ceil(model.layers / ranks)
        share = model.counted(layers=deep) / model.counted()
        rows[pipeline] = row(1, 0, share, activations * deep * ranks / model.layers)
    return rows


def activation_bytes(
    model: Model, samples: int, precision: str = "bf16 mixed", kept: str = "all", tensor: int = 1
) -> float:
    """What the forward of `samples` keeps for the backward, on one of `tensor` ranks.

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
    """{the name of a GPU with this memory: GB}."""
    return {row["gpu"].split()[0]: float(row["gb"]) for row in published.table("gpu_memory")}


def course_gpt_needs() -> dict[str, list[tuple[float, float]]]:
    """{words: [(parameters, GB)]} of this course's larger GPTs, trained in float32 with AdamW."""
    needs = {"state alone": [], "state and 1 sample": [], "state and 8 samples": []}
    for size in list(model_shapes.GPT)[1:]:
        layers = model_shapes.layers("gpt", size)
        parameters = model_shapes.parameters("gpt", size)
        kept = sum(layer.kept_numbers() for layer in layers)
        for samples, points in zip((0, 1, 8), needs.values(), strict=True):
            held = sum(FLOAT32.values()) * parameters + NUMBER * samples * kept
            points.append((parameters, held / 1e9))
    return needs


def cache_rows(lengths: tuple[int, ...], gigabytes: float = 80) -> list[dict]:
    """Rows for a Table: each served model's GB of a request, and how many fit on a GPU, bfloat16.

    None at a length beyond the model's context. Models with groups are there once more without.
    """
    models, room = {}, 1e9 * gigabytes
    for name, model in model_shapes.served_models().items():
        models[name] = model
        if model.key_heads < model.heads:
            models[f"{name}, with multi-head attention"] = model.without_groups()
    rows = []
    for name, model in models.items():
        row = {"model": name, "weights GB": 2 * model.parameters / 1e9}
        row |= {"query heads": model.heads, "key-value heads": model.key_heads}
        for length in lengths:
            takes = length <= model.sequence
            row[f"GB at {length:,}"] = model.cache_bytes(length) / 1e9 if takes else None
            row[f"fit at {length:,}"] = model.requests_that_fit(length, room) if takes else None
        rows += [row] if row["weights GB"] < gigabytes else []
    return rows


# This course's scripts


def stages_of(model: Model, plan: Plan, rank: int) -> list[tuple[Layer, ...]]:
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
    sizes = tuple(map(prod, shapes))
    means, count = (2, NUMBER) if p.optimizer == "adamw" else (1, 0)  # AdamW counts its steps
    tensors = len(shapes)  # each has a count of its own
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
    optimizer = NUMBER * means * updated + count * tensors
    return {"parameters": NUMBER * held, "gradients": NUMBER * gradients, "optimizer": optimizer}


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
    """What the forward has made and what lives when a backward begins, at its most."""
    p = plan
    known = ("gpipe", "1f1b", "interleaved")
    if model.parts[0].kept is None or p.schedule not in known or p.script == "3d":
        return None
    # windows of text with the byte behind them, as integers; targets are a view of them
    batch = INTEGER * (p.batch // p.data) * (model.sequence + 1)
    if p.pipeline > 1:
        return batch + _in_pipeline(model, p, rank)
    total = batch + forward_bytes(model, p, model.parts) + _integers(model, _scored(model, p))
    total += _integers(model, model.sequence)  # positions
    total += 12 if p.micro_batches == 1 else 20  # the loss, its weight, its gradient; their mean
    return total + gathered(model, p)


def _in_pipeline(model: Model, plan: Plan, rank: int) -> float:
    """The micro-batches in flight, and what torch still holds of others.

    1F1B holds the gradient that it sent last, and the last output but one that it sent before its
    first backward. The head's scores are held beside their logarithms.
    """
    p, m, stage = plan, plan.micro_batches, plan.stage_of(rank)
    stages = stages_of(model, p, rank)
    first, last = stage == 0, model.parts[-1] in stages[-1]
    bytes_of = [forward_bytes(model, p, layers) for layers in stages]
    border, scored = border_bytes(model, p), _scored(model, p)
    of_last = NUMBER * VOCABULARY * scored + _integers(model, scored)
    if p.virtual > 1:
        return _interleaved(p, stage, bytes_of, of_last, border)
    flight = in_flight(p, stage)
    total = flight * (sum(bytes_of) + _integers(model, model.sequence) * first)
    if last:
        total += flight * of_last + NUMBER * (m + flight + 1)  # and the losses
    if p.schedule == "1f1b":
        total += border * (not first and m > flight)
        total += border * (not last and flight > 1 and m - flight > flight - 2)
    return total


def _interleaved(p: Plan, stage: int, bytes_of: list, of_last: float, border: int) -> float:
    """Of a rank with several stages: torch holds what it has sent until the step ends."""
    places = pipeline_schedules.stages_of_rank(p.schedule, stage, p.pipeline)
    end = p.pipeline * p.virtual - 1
    kept = dict(zip(places, bytes_of, strict=True))
    kept |= {end: kept[end] + of_last} if end in kept else {}
    order = pipeline_schedules.plan(p.schedule, p.pipeline, p.micro_batches)[stage]
    outputs = {place: border * (place < end) for place in places}
    gradients = {place: border * (place > 0) for place in places}
    return pipeline_schedules.most_held(order, kept, {}, outputs, gradients)


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


def _integers(model: Model, count: int) -> int:
    """Bytes of a GPT's positions, or of its targets, which it copies into one row."""
    return INTEGER * count if model.kind == "gpt" else 0


def data_parallel(rank: dict, devices: int, outputs: float) -> dict[str, dict[str, float]]:
    """What a step of nn.DataParallel puts on each device, and DDP: not all at one moment.

    rank: the record of one process that trains the same global batch. outputs: bytes of the model's
    outputs for it; they count twice, as log-softmax, which the loss keeps, and as gradient.
    """
    model = {"parameters": rank["parameter_bytes"], "gradients": rank["gradient_bytes"]}
    state = {"optimizer state": rank["optimizer_bytes"]}
    share = {"activations": (rank["activation_bytes"] - outputs) / devices}  # without log-softmax
    return {
        "DataParallel, device 0": model | state | share | {"outputs": 2 * outputs},
        "DataParallel, each other": model | share | {"outputs": outputs / devices},
        "DDP, each rank": model | state | share | {"outputs": 2 * outputs / devices},
    }
