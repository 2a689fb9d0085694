"""A plan: how the GPUs share the model and the batch, `Plan(data=4, tensor=8)`, and its checks.

Ranks are numbered tensor first, then context, data, pipeline, as Megatron-LM does: the ranks of a
tensor group are neighbours.
"""

from dataclasses import dataclass, fields
from itertools import product
from math import ceil

from bootcamp.costs.hardware import Cluster
from bootcamp.costs.model_shapes import Model, ours
from bootcamp.costs.pipeline_schedules import CHUNKS, SCHEDULES

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
    """How a model is trained on a cluster.

    tensor, context, data, pipeline: ranks along each axis; their product is the GPUs. expert: ranks
    among the data ranks that share the experts. stage: of ZeRO over data and context ranks, 3 is
    FSDP. shard: ranks of a row for HSDP, 0 is all. micro_batch: samples of one forward of a rank.
    batch: samples of a step, all ranks together. virtual: stages of a pipeline rank. sequence: the
    tensor ranks share what lies between their matrices too (SP). reduce_bytes: of a gradient's
    number on the wire. attention: fused stores no matrix of scores (FlashAttention), softmax fuses
    scale, mask and softmax, unfused nothing. offload: the optimizer's state lies in the host's
    memory. script: of this course, whose bytes are counted as it lays them out; its recompute may
    be inputs or products.
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
    sequence: bool = False
    recompute: str = "none"
    precision: str = "bf16"
    reduce_bytes: int = 2
    compiled: bool = False
    attention: str = "fused"
    offload: bool = False
    asynchronous: bool = False
    keep_gathered: bool = False
    overlap: bool = True
    fused_loss: bool = False
    early_stop: bool = True
    script: str = ""
    optimizer: str = "adamw"

    @property
    def ranks(self) -> int:
        """GPUs that the axes need."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def micro_batches(self) -> int:
        """Forwards of a rank in a step."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def each_time(self) -> bool:
        """FSDP gathers and reduces for each micro-batch; in a pipeline once a step, as torch's."""
        return self.stage == 3 and self.pipeline == 1

    @property
    def sharing(self) -> int:
        """Ranks that share the model states: a row of them for HSDP."""
        return self.shard or self.data * self.context

    def stage_of(self, rank: int) -> int:
        """Which of a pipeline's ranks it is; they are neighbours where a script cuts two axes."""
        if self.script and self.script != "3d":
            return rank % self.pipeline
        return rank // (self.ranks // self.pipeline)

    def place_of(self, rank: int) -> int:
        """Which part a script's rank has of what the data ranks share."""
        return rank // (self.tensor * self.pipeline) % self.sharing


def of_run(config: dict) -> tuple[Model, Plan]:
    """Return what a script trained, from a run's configuration.

    config: strategy, processes, global_batch, and flags if given.
    """
    kind, strategy = config.get("model", "gpt"), config["strategy"]
    mesh, batch = config.get("mesh") or {}, config["global_batch"]
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
        sequence=config.get("sequence_parallel", False),
        recompute=config.get("keep") or "none",
        precision="fp32",
        reduce_bytes=4,
        keep_gathered=config.get("keep_gathered", False),
        script=strategy,
        optimizer=config.get("optimizer", "adamw"),
    )
    return ours(kind, config.get("size", "tiny")), plan


def check(shape: Model, cluster: Cluster, plan: Plan, uneven: bool = False) -> None:
    """Raise ValueError with a sentence for the first thing that cannot be.

    uneven: stages may have different numbers of layers, as published layouts have.
    """
    for field in fields(plan):
        value, least = getattr(plan, field.name), 0 if field.name in ("stage", "shard") else 1
        if field.type is int and value < least:
            raise ValueError(f"{field.name}={value}: expected {least} or more")
        if value not in KNOWN.get(field.name, (value,)):
            raise ValueError(f"{field.name}={value!r}: expected one of {KNOWN[field.name]}")
    for wrong, sentence in _conditions(shape, cluster, plan, uneven):
        if wrong:
            raise ValueError(sentence)


def _conditions(shape: Model, cluster: Cluster, p: Plan, uneven: bool):
    """(is it so, the sentence that says what is wrong) for each thing that must divide."""
    mesh = f"tensor {p.tensor} x context {p.context} x data {p.data} x pipeline {p.pipeline}"
    stages, each = p.pipeline * p.virtual, p.data * p.micro_batch
    yield p.ranks != cluster.gpus, f"{mesh} is {p.ranks} ranks, and there are {cluster.gpus} GPUs"
    wide = 0 if shape.head_width else shape.hidden % shape.heads
    yield wide, f"hidden {shape.hidden} is no multiple of {shape.heads} heads"
    yield shape.heads % p.tensor, f"{shape.heads} heads do not divide over tensor {p.tensor}"
    yield shape.hidden % p.tensor, f"hidden {shape.hidden} does not divide over tensor {p.tensor}"
    # embedding and head may count as a layer each, as in Llama 3's pipeline (arXiv:2407.21783)
    odd = not uneven and shape.layers % stages and (shape.layers + 2) % stages
    few = shape.layers < stages or (p.pipeline > 1 and odd)
    yield few, f"{shape.layers} layers do not divide over {stages} stages"
    data = f"data {p.data} x micro-batch {p.micro_batch}"
    yield p.batch % each, f"a batch of {p.batch} is no multiple of {data}"
    yield shape.sequence % p.context, f"sequence {shape.sequence} % context {p.context} is not 0"
    yield shape.experts % p.expert, f"{shape.experts} experts do not divide over {p.expert} ranks"
    yield (p.data * p.context) % p.expert, f"expert {p.expert} does not divide data {p.data}"
    yield p.shard and p.data % p.shard, f"data {p.data} makes no rows of {p.shard}"
    odd = p.virtual > 1 and p.pipeline > 1 and p.micro_batches % p.pipeline
    micro = f"{p.micro_batches} micro-batches"
    yield odd, f"interleaved: {micro} are no multiple of pipeline {p.pipeline}"


def candidates(model: Model, cluster: Cluster, batch: int, contexts: bool = False) -> list[Plan]:
    """Return the possible plans of powers of two along tensor (in a host) and pipeline.

    contexts: along context too.
    """
    powers = [2**i for i in range(cluster.gpus.bit_length())]
    inside = [tensor for tensor in powers if tensor <= cluster.per_host]
    found = []
    for tensor, pipeline, context in product(inside, powers, powers if contexts else (1,)):
        data = cluster.gpus // (tensor * pipeline * context)
        for micro, recompute in product((1, 2, 4, 8), ("none", "selective op", "full")):
            plan = Plan(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                stage=3 if pipeline == 1 else 1,
                micro_batch=micro,
                batch=batch,
                sequence=tensor > 1,
                recompute=recompute,
                compiled=True,
            )
            if possible(model, cluster, plan):
                found.append(plan)
    return found


def possible(model: Model, cluster: Cluster, plan: Plan) -> bool:
    """Whether a plan can be, and its micro-batches fill the pipeline."""
    try:
        check(model, cluster, plan)
    except ValueError:
        return False
    return plan.micro_batches >= plan.pipeline
