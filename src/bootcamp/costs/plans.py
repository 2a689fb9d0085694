"""Plans: how the GPUs share the model and the batch, `Plan(data=4, tensor=8)`; their checks.

Ranks are numbered as in Megatron-LM: tensor first, then context, data, pipeline.
"""

from collections.abc import Iterator
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
    "attention": ("fused", "flash 1", "flash 3", "softmax", "unfused"),
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
    for wrong in _problems(model, cluster, plan, uneven):
        if wrong:
            raise ValueError(wrong)


def _problems(model: Model, cluster: Cluster, p: Plan, uneven: bool = False):
    """Yield a sentence for each number that does not divide as it must, else something false."""
    t, c, d, stages = p.tensor, p.context, p.data, p.pipeline * p.virtual
    odd = p.ranks != cluster.gpus
    mesh = odd and f"tensor {t} x context {c} x data {d} x pipeline {p.pipeline}"
    yield odd and f"{mesh} is {p.ranks} ranks, and there are {cluster.gpus} GPUs"
    wide = 0 if model.head_width else model.hidden % model.heads
    yield wide and f"hidden {model.hidden} is no multiple of {model.heads} heads"
    yield model.heads % t and f"{model.heads} heads do not divide over tensor {t}"
    yield model.hidden % t and f"hidden {model.hidden} does not divide over tensor {t}"
    # embedding and head may count as a layer each, as in Llama 3's pipeline (arXiv:2407.21783)
    odd = model.layers % stages and (model.layers + 2) % stages
    few = odd and (model.layers < stages or (p.pipeline > 1 and not uneven))
    yield few and f"{model.layers} layers do not divide over {stages} stages"
    odd = p.batch % (d * p.micro_batch)
    yield odd and f"a batch of {p.batch} is no multiple of data {d} x micro-batch {p.micro_batch}"
    yield model.sequence % c and f"sequence {model.sequence} % context {c} is not 0"
    odd = model.experts % p.expert
    yield odd and f"{model.experts} experts do not divide over {p.expert} ranks"
    yield d * c % p.expert and f"expert {p.expert} does not divide data {d}"
    yield p.shard and d % p.shard and f"data {d} makes no rows of {p.shard}"
    micro = p.micro_batches
    odd = p.virtual > 1 and p.pipeline > 1 and micro % p.pipeline
    yield odd and f"interleaved: {micro} micro-batches are no multiple of pipeline {p.pipeline}"


def list_candidates(model: Model, cluster: Cluster, batch: int, **given) -> Iterator[Plan]:
    """Yield the possible plans whose micro-batches fill the pipeline.

    Tensor ranks stay in a host, or in a larger domain of NVLink, as cluster.per_host says. With a
    pipeline ZeRO-1, interleaved or not; without one ZeRO-1, FSDP, and HSDP with rows of any length.
    Context ranks have 1,024 tokens each. given: {field: values to try in place of these, or one}.
    """
    cuts = sorted({*_divisors(model.layers), *_divisors(model.layers + 2)})
    tries = {
        "tensor": _divisors(cluster.per_host),
        "pipeline": [ranks for ranks in _divisors(cluster.gpus) if ranks in cuts],
        "context": _divisors(max(1, model.sequence // 1024)),
        "expert": _divisors(model.experts),
        "virtual": cuts,
        "stage": (1, 3),
        "shard": (0, *_divisors(cluster.gpus)[1:-1]),
        "keep_gathered": (False, True),
        "micro_batch": (1, 2, 4, 8),
        "recompute": ("none", "selective op", "full"),
        "compile": (True,),
    }
    tries |= {n: each if isinstance(each, tuple) else (each,) for n, each in given.items()}
    axes = [tries.pop(name) for name in ("tensor", "pipeline", "context", "expert")]
    stages = tries["stage"] if "stage" in given else (1,)  # of ZeRO beside a pipeline
    for tensor, pipeline, context, expert in product(*axes):
        data, rest = divmod(cluster.gpus, tensor * pipeline * context)
        how = {"batch": batch, "sequence_parallel": tensor > 1}
        mesh = Plan(data, tensor, pipeline, context, expert, **how)
        if rest or not is_possible(model, cluster, mesh):
            continue
        own = tries | {"virtual": (1,)}
        if pipeline > 1:
            own["virtual"] = [n for n in tries["virtual"] if n * pipeline in cuts]
            own |= {"shard": (0,), "keep_gathered": (False,), "stage": stages}
        for values in product(*own.values()):
            plan = replace(mesh, **dict(zip(own, values, strict=True)))
            sharded = plan.stage == 3 or not (plan.shard or plan.keep_gathered)
            if sharded and is_possible(model, cluster, plan):
                yield plan


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def is_possible(model: Model, cluster: Cluster, plan: Plan) -> bool:
    """Whether a plan can be, and its micro-batches fill the pipeline."""
    return plan.micro_batches >= plan.pipeline and not any(_problems(model, cluster, plan))
