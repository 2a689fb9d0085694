"""Plans: how the GPUs share the model and the batch, `Plan(data=4, tensor=8)`; their checks.

Ranks are numbered as in Megatron-LM: tensor first, then context, data, pipeline.
"""

from dataclasses import dataclass, fields, replace
from itertools import product
from math import ceil

from bootcamp.costs.hardware import Cluster
from bootcamp.costs.model_shapes import Model, course_model
from bootcamp.costs.pipeline_schedules import CHUNKS, SCHEDULES
from bootcamp.costs.sharding import Group

RECOMPUTE = ("none", "selective", "selective op", "full")
KNOWN = {
    "recompute": RECOMPUTE,
    "precision": ("bf16", "fp8", "fp32"),
    "schedule": tuple(name for name in SCHEDULES if name != "dualpipe"),  # its step has no formula
    "attention": ("fused", "softmax", "unfused"),
    "stage": (0, 1, 2, 3),
}
STAGES = {"zero1": 1, "fsdp": 3, "hsdp": 3, "fsdp_tp": 3}  # of ZeRO, by script
UNITS = ("fsdp", "hsdp")  # each layer of the model is a unit of FSDP2, and the head stays gathered


@dataclass(frozen=True)
class Plan:
    """How a model is trained on a cluster; planner.COLUMNS explains the fields that tables have.

    script: one of this course's, such as "fsdp". Bytes are then counted as it lays them out, in
    float32; recompute may be "inputs" or "products" (its flag --keep); optimizer is its own.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    stage: int = 0
    shard: int = 0
    micro_batch: int = 1
    batch: int = 1
    virtual: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    recompute: str = "none"
    precision: str = "bf16"
    reduce_bytes: int = 2
    compile: bool = False
    attention: str = "fused"
    offload: bool = False
    async_tensor: bool = False
    keep_gathered: bool = False
    overlap: bool = True
    fused_loss: bool = False
    early_stop: bool = True
    script: str = ""
    optimizer: str = "adamw"

    @property
    def ranks(self) -> int:
        """Number of GPUs that the axes need."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def micro_batches(self) -> int:
        """Number of a rank's forwards in a step."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def each_time(self) -> bool:
        """Whether FSDP gathers and reduces for each micro-batch; in a pipeline once, as torch's."""
        return self.stage == 3 and self.pipeline == 1

    @property
    def sharing(self) -> int:
        """Number of ranks that share the model states: a row of them for HSDP."""
        return self.shard or self.data * self.context

    @property
    def groups(self) -> dict[str, Group]:
        """Return {axis: a rank's group}. shard of experts: the data ranks with the same experts."""
        t, c, shared = self.tensor, self.context, self.data * self.context
        row = self.shard * c if self.shard else shared
        holders = min(self.expert, row)
        return {
            "tensor": Group(t, 1),
            "context": Group(c, t),
            "shard": Group(row, t),
            "shard of experts": Group(row // holders, t * holders),
            "replicate": Group(shared // row, t * row),
            "expert": Group(self.expert, t),
            "pipeline": Group(self.pipeline, t * shared),
        }

    def stage_of(self, rank: int) -> int:
        """Return a rank's place in its pipeline: neighbours make one in scripts of two axes."""
        neighbours = self.script and self.script != "3d"
        return rank % self.pipeline if neighbours else rank // (self.ranks // self.pipeline)

    def place_of(self, rank: int) -> int:
        """Return the number of its part among the data ranks of a script."""
        return rank // (self.tensor * self.pipeline) % self.sharing


def of_run(config: dict) -> tuple[Model, Plan]:
    """Return the model and the plan of a run: strategy, processes, global_batch, given flags."""
    strategy, mesh, batch = config["strategy"], config.get("mesh") or {}, config["global_batch"]
    tensor, pipeline = mesh.get("tensor", 1), mesh.get("pipeline", 1)
    data = config["processes"] // (tensor * pipeline)
    schedule = config.get("schedule", "1f1b") if pipeline > 1 else "1f1b"
    plan = Plan(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        stage=config["stage"] if strategy == "zero" else STAGES.get(strategy, 0),
        shard=config.get("shard", 0) if strategy == "hsdp" else 0,
        micro_batch=ceil(batch / data / config.get("micro_batches", 1)),
        batch=batch,
        virtual=CHUNKS[schedule],
        schedule=schedule,
        sequence_parallel=config.get("sequence_parallel", False),
        recompute=config.get("keep") or "none",
        precision="fp32",
        reduce_bytes=4,
        keep_gathered=config.get("keep_gathered", False),
        script=strategy,
        optimizer=config.get("optimizer", "adamw"),
    )
    return course_model(config.get("model", "gpt"), config.get("size", "tiny")), plan


def check(model: Model, cluster: Cluster, plan: Plan, uneven: bool = False) -> None:
    """Raise ValueError with a sentence for the first thing that cannot be.

    uneven: stages may have different numbers of layers, as published layouts have.
    """
    for field in fields(plan):
        value, least = getattr(plan, field.name), 0 if field.name in ("stage", "shard") else 1
        if field.type is int and value < least:
            raise ValueError(f"{field.name}={value}: expected {least} or more")
        if value not in KNOWN.get(field.name, (value,)):
            raise ValueError(f"{field.name}={value!r}: expected one of {KNOWN[field.name]}")
    for wrong, sentence in _conditions(model, cluster, plan, uneven):
        if wrong:
            raise ValueError(sentence)


def _conditions(model: Model, cluster: Cluster, p: Plan, uneven: bool):
    """Yield (whether it is wrong, a sentence that says so) for each number that must divide."""
    mesh = f"tensor {p.tensor} x context {p.context} x data {p.data} x pipeline {p.pipeline}"
    stages, each = p.pipeline * p.virtual, p.data * p.micro_batch
    data, micro = f"data {p.data} x micro-batch {p.micro_batch}", f"{p.micro_batches} micro-batches"
    yield p.ranks != cluster.gpus, f"{mesh} is {p.ranks} ranks, and there are {cluster.gpus} GPUs"
    wide = 0 if model.head_width else model.hidden % model.heads
    yield wide, f"hidden {model.hidden} is no multiple of {model.heads} heads"
    yield model.heads % p.tensor, f"{model.heads} heads do not divide over tensor {p.tensor}"
    yield model.hidden % p.tensor, f"hidden {model.hidden} does not divide over tensor {p.tensor}"
    # embedding and head may count as a layer each, as in Llama 3's pipeline (arXiv:2407.21783)
    odd = not uneven and model.layers % stages and (model.layers + 2) % stages
    few = model.layers < stages or (p.pipeline > 1 and odd)
    yield few, f"{model.layers} layers do not divide over {stages} stages"
    yield p.batch % each, f"a batch of {p.batch} is no multiple of {data}"
    yield model.sequence % p.context, f"sequence {model.sequence} % context {p.context} is not 0"
    yield model.experts % p.expert, f"{model.experts} experts do not divide over {p.expert} ranks"
    yield (p.data * p.context) % p.expert, f"expert {p.expert} does not divide data {p.data}"
    yield p.shard and p.data % p.shard, f"data {p.data} makes no rows of {p.shard}"
    odd = p.virtual > 1 and p.pipeline > 1 and p.micro_batches % p.pipeline
    yield odd, f"interleaved: {micro} are no multiple of pipeline {p.pipeline}"


def list_candidates(
    model: Model, cluster: Cluster, batch: int, contexts: bool = False
) -> list[Plan]:
    """Return the possible plans of powers of two along tensor (in a host), pipeline, context."""
    powers = [2**i for i in range(cluster.gpus.bit_length())]
    inside = [tensor for tensor in powers if tensor <= cluster.per_host]
    found = []
    for tensor, pipeline, context in product(inside, powers, powers if contexts else (1,)):
        data, stage = cluster.gpus // (tensor * pipeline * context), 3 if pipeline == 1 else 1
        how = {"stage": stage, "batch": batch, "compile": True, "sequence_parallel": tensor > 1}
        mesh = Plan(data, tensor, pipeline, context, **how)
        for micro, recompute in product((1, 2, 4, 8), ("none", "selective op", "full")):
            found.append(replace(mesh, micro_batch=micro, recompute=recompute))
    return [plan for plan in found if is_possible(model, cluster, plan)]


def is_possible(model: Model, cluster: Cluster, plan: Plan) -> bool:
    """Whether a plan can be, and its micro-batches fill the pipeline."""
    try:
        check(model, cluster, plan)
    except ValueError:
        return False
    return plan.micro_batches >= plan.pipeline
