"""What a rank of the course's own scripts holds and sends, to the byte: `course.held(job)`.

A job is a script of the family with its flags, as a run's config.json has it. Parameters, gradients
and the optimizer's state are exact, and so are activations, those at the beginning of a backward.
All is in float32. Standard library only.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from bootcamp.costs import layer_cut, model_shapes, pipeline_orders, sharding
from bootcamp.costs import tensor as tensor_theory
from bootcamp.costs.setting import Plan
from bootcamp.costs.shapes import Shape
from bootcamp.costs.sharding import DEEPSPEED_FLOAT32, FLOAT32, GLOO
from bootcamp.table import Table

NUMBER, INTEGER = 4, 8  # bytes
STAGES = {"zero1": 1, "fsdp": 3, "hsdp": 3, "fsdp_tp": 3}  # of ZeRO
RECOMPUTED = {"inputs": 1, "products": 10}  # numbers a token and width that a block keeps
SPLIT = ("zero-bubble", "dualpipe")  # schedules whose backward has two halves
UNITS = ("fsdp", "hsdp")  # each layer of the model is a unit of FSDP2, and the head stays gathered


class CourseGpt(Shape):
    """The course's GPT for the planner: no biases in attention, a head of its own with a norm.

    The planner counts two ends of equal size; theirs together are exact.
    """

    def layer_parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Of a block on one rank."""
        return self._of(1, tensor) - self._of(0, tensor)

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Half of embedding and head together."""
        return self._of(0, tensor) / 2

    @property
    def parameters(self) -> float:
        """Of the whole model."""
        return self._of(self.layers, 1)

    def _of(self, layers: int, tensor: int) -> float:
        sizes = {"layers": layers, "width": self.hidden, "context": self.sequence}
        return tensor_theory.parameter_bytes(sizes, tensor) / NUMBER


def gpt(size: str = "tiny") -> CourseGpt:
    """A GPT of model_shapes.GPT for the planner."""
    sizes = model_shapes.GPT[size].values()
    return CourseGpt(*sizes, model_shapes.VOCABULARY, tied=False)


@dataclass(frozen=True)
class Job:
    """A script of the family with its flags. shape: as in model_shapes.SIZES; keep: of blocks."""

    strategy: str
    model: str
    shape: dict
    plan: Plan
    optimizer: str = "adamw"
    keep: str | None = None

    @cached_property
    def layers(self) -> list[model_shapes.Layer]:
        """The model's, from the first to the last."""
        return model_shapes.of_shape(self.model, self.shape)

    def stage(self, rank: int) -> int:
        """Which of a pipeline's ranks it is: neighbours in its ranks are neighbours in the mesh."""
        return rank % self.plan.pipeline

    def place(self, rank: int) -> int:
        """Which part a rank has of what the data ranks share."""
        return rank // (self.plan.tensor * self.plan.pipeline) % self.plan.sharing

    def mine(self, rank: int) -> list[list[model_shapes.Layer]]:
        """The layers of each of a rank's stages in the pipeline."""
        p = self.plan
        edges = layer_cut.equal(len(self.layers), p.pipeline * p.virtual)
        places = pipeline_orders.stages_of_rank(p.schedule, self.stage(rank), p.pipeline)
        return [self.layers[edges[i] : edges[i + 1]] for i in places]

    def shapes(self, rank: int) -> list[tuple[int, ...]]:
        """Of the parameters that a rank would hold if the data ranks shared nothing."""
        return [shape for stage in self.mine(rank) for layer in stage for shape in layer.shapes]


def job(config: dict) -> Job:
    """The job of a run's configuration: strategy, processes, global_batch, and flags if given."""
    model, strategy = config.get("model", "gpt"), config["strategy"]
    mesh, batch = config.get("mesh") or {}, config["global_batch"]
    tensor, pipeline = mesh.get("tensor", 1), mesh.get("pipeline", 1)
    data = config["processes"] // (tensor * pipeline)
    micro = ceil(batch / data / config.get("micro_batches", 1))
    schedule = config.get("schedule", "1f1b") if pipeline > 1 else "1f1b"
    plan = Plan(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        stage=config["stage"] if strategy == "zero" else STAGES.get(strategy, 0),
        shard=config.get("shard", 0) if strategy == "hsdp" else 0,
        micro_batch=micro,
        batch=batch,
        virtual=pipeline_orders.CHUNKS[schedule],
        schedule=schedule,
        sequence=config.get("sequence_parallel", False),
        precision="fp32",
        reduce_bytes=NUMBER,
        keep_gathered=config.get("keep_gathered", False),
    )
    shape = config.get("shape") or model_shapes.SIZES[model][config.get("size", "tiny")]
    return Job(strategy, model, shape, plan, config.get("optimizer", "adamw"), config.get("keep"))


def held(job: Job, rank: int = 0) -> dict[str, float]:
    """Bytes of a rank: parameters, gradients, optimizer, activations (None where unknown)."""
    found = _tensor_states(job) if job.plan.tensor > 1 else _states(job, rank)
    return {**found, "activations": activations(job, rank)}


def _tensor_states(job: Job) -> dict[str, float]:
    p = job.plan
    parameters = tensor_theory.parameter_bytes(job.shape, p.tensor, p.sharing if p.stage else 1)
    optimizer = tensor_theory.adamw_bytes(job.shape, p.tensor, p.sharing if p.stage else 1)
    if job.optimizer == "sgd":
        optimizer = parameters
    return {"parameters": parameters, "gradients": parameters, "optimizer": optimizer}


def _states(job: Job, rank: int) -> dict[str, float]:
    """Of a rank that has whole matrices, or rows of them."""
    p, shapes, place = job.plan, job.shapes(rank), job.place(rank)
    means = 2 if job.optimizer == "adamw" else 1
    counts = NUMBER if job.optimizer == "adamw" else 0  # AdamW's step, for each tensor it knows
    sizes = tuple(map(prod, shapes))
    if job.strategy == "zero":
        return _deepspeed(job, shapes, means, counts)
    if p.stage == 3:  # room for the largest part, AdamW's state of the own part
        most = NUMBER * sharding.rows_of_rank(shapes, p.sharing)
        own = NUMBER * means * sharding.rows_of_rank(shapes, p.sharing, place)
        return {"parameters": most, "gradients": most, "optimizer": own + counts * len(shapes)}
    found = sharding.rank_bytes(sum(sizes), 1, 0, {**FLOAT32, "optimizer": NUMBER * means})
    mine = sharding.whole_tensors(sizes, p.data)[place] if p.stage == 1 else range(len(sizes))
    own = NUMBER * means * sum(sizes[i] for i in mine)
    return {**found, "optimizer": own + counts * len(mine)}


def _deepspeed(job: Job, shapes: list, means: int, counts: int) -> dict[str, float]:
    """DeepSpeed's own layouts: a row of all parameters, or each by itself; a copy of its part."""
    p, numbers = job.plan, sum(map(prod, shapes))
    if not p.stage:
        whole = NUMBER * numbers
        state = {"parameters": whole, "gradients": whole}
        return {**state, "optimizer": means * whole + counts * len(shapes)}
    flat = sharding.flat_part(numbers, p.data)
    part = sharding.parts_one_by_one(shapes, p.data) if p.stage == 3 else flat
    each = {**DEEPSPEED_FLOAT32, "optimizer": NUMBER * (means + 1)}
    found = sharding.rank_bytes(p.data * part, p.data, p.stage, each)
    return {**found, "gradients": NUMBER * part, "optimizer": found["optimizer"] + counts}


def kept(job: Job) -> dict[str, float] | None:
    """{kind of layer: numbers that its forward keeps for a sample}; None for other models."""
    shape, p = job.shape, job.plan
    if job.model == "mlp":
        width = shape["context"] * model_shapes.EMBEDDING_WIDTH
        return {"embedding": width, "hidden": shape["width"], "head": model_shapes.VOCABULARY}
    if job.model != "gpt":
        return None
    numbers = tensor_theory.kept(shape, p.tensor, p.sequence)
    if job.keep:
        numbers["block"] = RECOMPUTED[job.keep] * shape["width"]
    return {kind: shape["context"] * number for kind, number in numbers.items()}


def activations(job: Job, rank: int = 0) -> float | None:
    """Bytes that a rank's forward has made and that live when a backward begins, at their most.

    With the batch itself, and what FSDP has gathered and not freed. None for models and schedules
    that have no formula here.
    """
    of = kept(job)
    if of is None or job.plan.schedule in SPLIT:
        return None
    if job.plan.pipeline > 1:
        return _in_pipeline(job, rank, of)
    p, samples = job.plan, job.plan.batch // job.plan.data
    forward = NUMBER * p.micro_batch * sum(of[_kind(layer)] for layer in job.layers)
    total = forward + _batch(job, samples) + _targets(job) + _positions(job)
    total += 12 if p.micro_batches == 1 else 20  # the loss, its weight, its gradient; their mean
    return total + gathered(job)


def _in_pipeline(job: Job, rank: int, of: dict) -> float:
    """Of a rank of a pipeline: the micro-batches in flight, and what torch still holds of others.

    1F1B holds the gradient that it sent last, and the last output but one that it sent before its
    first backward. The head's scores are held beside their logarithms.
    """
    p, stage, stages = job.plan, job.stage(rank), job.mine(rank)
    first, last = stage == 0, job.layers[-1] in stages[-1]
    bytes_of = [NUMBER * p.micro_batch * sum(of[_kind(x)] for x in layers) for layers in stages]
    scores = NUMBER * model_shapes.VOCABULARY * _scored(job)
    m, border = p.micro_batches, _border(job)
    total = _batch(job, p.batch // p.data)
    if p.virtual > 1:
        return total + _interleaved(job, rank, bytes_of, (scores + _targets(job)) * last)
    flight = m if p.schedule == "gpipe" else min(m, p.pipeline - stage)
    total += flight * (sum(bytes_of) + _positions(job) * first)
    if last:
        losses = NUMBER * (m + flight + 1)
        total += flight * (scores + _targets(job)) + losses
    if p.schedule == "1f1b":
        total += border * (not first and m > flight)
        total += border * (not last and flight > 1 and m - flight > flight - 2)
    return total


def _interleaved(job: Job, rank: int, bytes_of: list[float], of_last: float) -> float:
    """Of a rank with several stages. torch holds what it has sent until the step ends.

    bytes_of: of each stage's forward. of_last: what the last stage holds of each micro-batch too.
    """
    p, stage, border = job.plan, job.stage(rank), _border(job)
    places = pipeline_orders.stages_of_rank(p.schedule, stage, p.pipeline)
    end, pairs = p.pipeline * p.virtual - 1, zip(places, bytes_of, strict=True)
    kept_of = {place: size + of_last * (place == end) for place, size in pairs}
    now = most = 0.0
    for kind, place, _ in pipeline_orders.plan(p.schedule, p.pipeline, p.micro_batches)[stage]:
        most = max(most, now) if kind == "B" else most
        now += kept_of[place] if kind == "F" else border * ((place > 0) + (place < end))
        now -= kept_of[place] if kind == "B" else 0
    return most


def gathered(job: Job) -> int:
    """Bytes of parameters that FSDP has gathered and not freed when the backward begins."""
    p = job.plan
    if p.tensor > 1 and p.stage == 3:
        return tensor_theory.gathered_bytes(job.shape, p.tensor)
    if job.strategy not in UNITS:
        return 0
    layers = job.layers if p.keep_gathered else job.layers[-1:]
    return sum(_whole(layer, p.sharing) for layer in layers)


def _whole(layer, ranks: int) -> int:
    """Bytes of a gathered layer, each part as large as the largest."""
    return NUMBER * ranks * sharding.rows_of_rank(layer.shapes, ranks)


def _kind(layer) -> str:
    return layer.name.partition(" ")[0]


def _scored(job: Job) -> int:
    """Predictions of a micro-batch."""
    return job.plan.micro_batch * (job.shape["context"] if job.model == "gpt" else 1)


def _batch(job: Job, samples: int) -> int:
    """Windows of text with the byte behind them, as integers; targets are a view of them."""
    return INTEGER * samples * (job.shape["context"] + 1)


def _targets(job: Job) -> int:
    """The GPT's targets in one row: a copy."""
    return INTEGER * _scored(job) if job.model == "gpt" else 0


def _positions(job: Job) -> int:
    return INTEGER * job.shape["context"] if job.model == "gpt" else 0


def _border(job: Job) -> int:
    """Bytes of one micro-batch between two stages of a pipeline, either way."""
    return NUMBER * _scored(job) * job.shape["width"]


def calls(job: Job) -> dict[tuple[str, int], int]:
    """{(kind, bytes of the whole tensor): how often a rank calls it in a step}: FSDP2's and TP's.

    A dispatcher does not see those of DDP.
    """
    p = job.plan
    if job.strategy == "tp":
        return tensor_theory.collectives(job.shape, p.batch, p.sequence)
    found: dict[tuple[str, int], int] = {}
    for layer in job.layers:
        whole = _whole(layer, p.sharing)
        once = p.keep_gathered or layer is job.layers[-1]
        for key, count in (("all-gather", 1 if once else 2), ("reduce-scatter", 1)):
            found[key, whole] = found.get((key, whole), 0) + count
    return found


def sent(job: Job, rank: int = 0, factors: dict[str, int] = GLOO) -> float:
    """Bytes that a rank sends in a step, the mean over the ranks for ZeRO-1 of torch."""
    p = job.plan
    whole = NUMBER * sum(map(prod, job.shapes(rank)))
    if job.strategy in UNITS:
        whole = sum(_whole(layer, p.sharing) for layer in job.layers)
    rings = p.data * p.context
    if p.tensor > 1:
        counts = tensor_theory.collectives(job.shape, p.batch // p.data, p.sequence)
        total = tensor_theory.sent_bytes(counts, p.tensor, factors)
        if p.stage == 3:
            size = tensor_theory.parameter_bytes(job.shape, p.tensor)
            root = tensor_theory.gathered_bytes(job.shape, p.tensor) / size
            total += sharding.sent_bytes(
                sharding.collectives("fsdp", root=root), size, p.data, None, factors
            )
        return total
    borders = pipeline_orders.borders(p.schedule, job.stage(rank), p.pipeline)
    handed = borders * p.micro_batches * _border(job)
    strategy = {"zero1": "zero1", "fsdp": "fsdp", "hsdp": "hsdp"}.get(job.strategy, "ddp")
    if job.strategy == "zero" and p.stage:  # stage 3 keeps what it has gathered of small models
        strategy = "fsdp" if p.stage == 3 else "zero2"
    root = _whole(job.layers[-1], p.sharing) / whole
    how = {"keep_gathered": p.keep_gathered or job.strategy == "zero", "root": root}
    asked = sharding.collectives(strategy, p.sharing, **how)
    if strategy == "zero1":  # an all-reduce, and each rank broadcasts its part
        asked = [("shard", "all-reduce", 1.0), ("shard", "all-gather", 1.0)]
    return handed + sharding.sent_bytes(asked, whole, rings, p.shard or None, factors)


def kinds(job: Job) -> Table:
    """A line for each kind of rank: how many there are, the first of them, what it holds, sends."""
    found: dict[tuple, dict] = {}
    lines: dict[tuple, dict] = {}
    part = _parts(job)
    for rank in range(job.plan.ranks):
        where = job.stage(rank), part(job.place(rank))  # all else is the same on every rank
        if where not in found:
            sizes = {**held(job, rank), "sent": sent(job, rank)}
            line = {f"{kind}_bytes": size and round(size) for kind, size in sizes.items()}
            found[where] = lines.setdefault((*line.values(),), {"ranks": 0, "first": rank, **line})
        found[where]["ranks"] += 1
    caption = f"{job.strategy}, {job.plan.ranks:,} ranks, a line for each kind, by formula"
    return Table(list(lines.values()), caption)


def _parts(job: Job):
    """A function of a rank's place that differs where the parts differ: no rank is looked at."""
    p, shapes = job.plan, job.shapes(0)
    if job.strategy == "zero1":
        sizes = tuple(map(prod, shapes))
        parts = sharding.whole_tensors(sizes, p.data)
        return lambda place: (sum(sizes[i] for i in parts[place]), len(parts[place]))
    if p.stage == 3 and p.tensor == 1:  # a rank with fewer rows, and ranks with none
        full = {rows // ceil(rows / p.sharing) for rows, *_ in shapes}
        edges = sorted(full | {edge + 1 for edge in full})
        return lambda place: bisect_right(edges, place)
    return lambda place: 0
