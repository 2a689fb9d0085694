"""Read one row of a table of plans: `rows.read({"gpus": "8", "model": "Llama 3 8B", ...})`.

A blank is filled in by the row's stack (`row` in constants.toml), else as COLUMNS says.
"""

import math
from dataclasses import dataclass, replace
from difflib import get_close_matches

from bootcamp.costs import images, memory, model_shapes, stacks
from bootcamp.costs.hardware import GB, Cluster, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.setting import Plan, check

COLUMNS = {
    "stack": "software whose fitted constants apply, see --stacks; blank: one never seen",
    "method": "framework or ZeRO-3, in stacks whose tables compare several",
    "model": "a name in published/models.csv or cnns.csv; sizes in the row replace its own",
    "gpu": "a name in published/gpus.csv; A100 80GB",
    "gpus": "all GPUs; by default the product of tensor, data, pipeline and context",
    "gpus_per_host": "8",
    "host_gb_s": "1e9 bytes/s that a host sends; 25 for each GPU, 50 from H100 on",
    "nvlink": "no: a host's GPUs are joined by PCIe alone",
    "batch": "samples of a step, all GPUs together; micro_batch x data x accumulation",
    "micro_batch": "samples of one forward pass; 1 in a pipeline, else batch / data",
    "accumulation": "micro-batches of a step, where batch is blank",
    "layers": "needs hidden and heads too",
    "hidden": "width of the model",
    "heads": "attention heads",
    "key_heads": "heads of keys and values; heads",
    "inner": "width of a gated MLP of three matrices; blank: two matrices, 4 x hidden",
    "vocabulary": "the model's, else 50257",
    "sequence_length": "tokens of a sample; the model's",
    "experts": "MLPs of a layer; 1",
    "chosen": "experts that a token passes; 1",
    "parameters": "without batch and micro_batch: predict the memory of this many's states alone",
    "largest_layer": "its parameters, for method DeepSpeed and stage 3",
    "one_layer": "yes: forward and backward of one layer alone",
    "tensor": "tensor-parallel ranks; 1",
    "data": "data-parallel ranks; what the other axes leave of gpus",
    "pipeline": "pipeline ranks; 1",
    "context": "context-parallel ranks; 1",
    "expert": "data ranks that share the experts; 1",
    "virtual": "stages of a pipeline rank; 1",
    "schedule": "1f1b, gpipe, interleaved, zero-bubble or zb-v; 1f1b",
    "shard": "ranks among which HSDP shards; 0 is all",
    "stage": "of ZeRO: 0 to 3, 3 is FSDP; 0",
    "recompute": "none, selective (attention), selective op (every second product) or full; none",
    "precision": "bf16 (or fp16), fp8 or fp32; bf16",
    "compile": "yes: compiled layers; no",
    "attention": "fused (FlashAttention), softmax (fused softmax) or unfused; fused",
    "sequence_parallel": "yes: tensor ranks share what lies between their matrices; no",
    "async_tensor": "yes: tensor collectives overlap with products in pieces; no",
    "keep_gathered": "yes: FSDP gathers once a step (SHARD_GRAD_OP); no",
    "offload": "yes: the optimizer's state is in the host's memory; no",
    "overlap": "no: gradients are reduced after the backward pass; yes",
    "fused_loss": "yes: no full copy of the scores; no",
    "early_stop": "no: recomputation repeats a layer's last product; yes",
    "reduce_bytes": "bytes of a gradient's number on the wire; 2",
}
ALIASES = {"tp": "tensor", "dp": "data", "pp": "pipeline", "cp": "context", "ep": "expert"}
ALIASES |= {"vp": "virtual", "global_batch": "batch"}
UNREAD = ("row_id", "source", "note")  # and published_*: allowed, and not read
REAL = ("host_gb_s", "parameters", "largest_layer")
TEXTS = ("stack", "method", "model", "gpu", "schedule", "recompute", "precision", "attention")
FLAGS = {name: name for name in ("keep_gathered", "offload", "overlap", "fused_loss", "early_stop")}
FLAGS |= {"compile": "compiled", "sequence_parallel": "sequence", "async_tensor": "asynchronous"}
YES_NO = {"yes": True, "y": True, "true": True, "1": True}
YES_NO |= {"no": False, "n": False, "false": False, "0": False}
BLANK = ("", "-", "--", "n/a", "na", "none", "null")  # for a number
MAY_BE_ZERO = ("stage", "shard", "virtual", "accumulation")
LARGEST = 1e9  # of a whole number
PCIE_3 = 6e9  # bytes/s of an all-reduce through the host's memory, about half of a slot's 12


class NoPlan(ValueError):
    """A row that names no plan, or an impossible one; the text says why."""


@dataclass(frozen=True)
class Workload:
    """A model on a cluster by a plan.

    shape: None where the row gives a number of parameters alone. held: bytes of states by
    DeepSpeed's own formula. image_model: a convolutional network, else "".
    """

    stack: str
    cluster: Cluster
    plan: Plan
    shape: Model | None = None
    parameters: float = 0.0
    image_model: str = ""
    one_layer: bool = False
    method: str = ""
    held: float = 0.0


def unknown(columns, passed=()) -> list[str]:
    """Return those of the columns that nobody reads, each with a column of a similar name."""
    found = []
    for column in columns:
        name = str(column).strip().lower()
        known = name in COLUMNS or name in ALIASES or name in UNREAD or name in passed
        if not known and not name.startswith("published_"):
            near = get_close_matches(name, COLUMNS, 1, 0.5)
            found.append(f"{column} (did you mean {near[0]}?)" if near else str(column))
    return found


def read(row: dict[str, str]) -> Workload:
    """Return what a row asks. Raises NoPlan with a sentence for one that has no answer."""
    try:
        return _read(row)
    except ValueError as problem:
        raise problem if isinstance(problem, NoPlan) else NoPlan(str(problem)) from None


def _read(row: dict[str, str]) -> Workload:
    defaults = stacks.row_defaults(_text(row.get("stack")))
    values = {"gpu": "A100 80GB", "gpus_per_host": "8"}
    values |= {name: str(value) for name, value in defaults.items()}
    spelled = {}
    for column, value in row.items():
        name = str(column).strip().lower()
        name = ALIASES.get(name, name)
        text = _text(value)
        if name in COLUMNS and text and (name in TEXTS or text.lower() not in BLANK):
            values[name], spelled[name] = text, str(column).strip()
    flags, numbers = {}, {}
    for name, text in values.items():
        if name in FLAGS or name in ("nvlink", "one_layer"):
            flags[name] = _flag(name, text)
        elif name not in TEXTS:
            numbers[name] = _number(spelled.get(name, name), name, text)
    texts = {name: values.get(name, "") for name in TEXTS}
    stack, one_layer = texts["stack"], flags.get("one_layer", False)
    if image_model := images.find(texts["model"]):
        cluster = _cluster(texts, flags, numbers)
        each = _need(numbers, "micro_batch")
        plan = Plan(data=cluster.gpus, micro_batch=each, batch=cluster.gpus * each)
        return Workload(stack, cluster, plan, image_model=image_model, method=image_model)
    shape = _shape(texts["model"], numbers, one_layer)
    if shape is None:
        return _states(stack, texts, flags, numbers)
    if one_layer:
        numbers |= {"gpus": numbers.get("tensor", 1), "batch": _need(numbers, "micro_batch")}
    cluster = _cluster(texts, flags, numbers)
    plan = _plan(texts, flags, numbers, cluster)
    check(shape, cluster, plan, uneven=bool(model_shapes.named(texts["model"])))
    return Workload(stack, cluster, plan, shape, one_layer=one_layer, method=texts["method"])


def _text(value) -> str:
    return "" if value is None else str(value).strip()


def _flag(name: str, text: str) -> bool:
    if text.lower() not in YES_NO:
        raise NoPlan(f"{name}={text!r}: expected yes or no")
    return YES_NO[text.lower()]


def _number(spelled: str, name: str, text: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        raise NoPlan(f"{spelled}={text!r} is not a number") from None
    if not math.isfinite(value) or value < 0 or (value == 0 and name not in MAY_BE_ZERO):
        raise NoPlan(f"{spelled}={text}: expected a number above zero")
    if name not in REAL and value != int(value):
        raise NoPlan(f"{spelled}={text}: expected a whole number")
    if value > (1e18 if name in REAL else LARGEST):
        raise NoPlan(f"{spelled}={text}: too large, expected at most {LARGEST:.0e}")
    return value if name in REAL else int(value)


def _need(numbers: dict, name: str) -> int:
    if name not in numbers:
        raise NoPlan(f"{name} is missing")
    return numbers[name]


def _shape(model: str, numbers: dict, one_layer: bool) -> Model | None:
    """The model, by its name and the sizes that the row gives; None if it has neither."""
    known = model_shapes.named(model) if model else None
    sizes = {name: numbers.get(name) for name in ("layers", "hidden", "heads")}
    more = {name: numbers.get(name) for name in ("key_heads", "inner", "experts", "chosen")}
    ends = {"sequence": numbers.get("sequence_length"), "vocabulary": numbers.get("vocabulary")}
    if one_layer:
        sizes["layers"], ends["vocabulary"] = 1, 0
    given = all(sizes.values())
    same = known and all(getattr(known, name) == size for name, size in sizes.items())
    if given and not (same and not any(more.values())):
        sequence, gated = _need(numbers, "sequence_length"), bool(more["inner"])
        vocabulary = 50257 if ends["vocabulary"] is None else ends["vocabulary"]
        more = {name: size for name, size in more.items() if size}
        return Model(*sizes.values(), sequence, vocabulary, **more, gated=gated, tied=not gated)
    if "parameters" in numbers and not {"batch", "micro_batch"} & set(numbers):
        return None
    if known:
        return model_shapes.at(known, **sizes, **more, **ends)
    if any(sizes.values()):
        for name in sizes:
            _need(numbers, name)
    if model:
        raise NoPlan(f"model={model!r} is not known, and the row gives no sizes of it")
    raise NoPlan("the row names no model: expected model, or layers, hidden and heads")


def _cluster(texts: dict, flags: dict, numbers: dict) -> Cluster:
    device = gpu(texts["gpu"])
    if not flags.get("nvlink", True):
        device = replace(device, bus=PCIE_3)
    if "data" in numbers:
        axes = (numbers.get(axis, 1) for axis in ("tensor", "data", "pipeline", "context"))
        numbers.setdefault("gpus", math.prod(axes))
    per_host = numbers["gpus_per_host"]
    rate = numbers.get("host_gb_s") or (50 if device.peak > 400e12 else 25) * per_host
    return Cluster(device, _need(numbers, "gpus"), per_host, rate * GB)


def _plan(texts: dict, flags: dict, numbers: dict, cluster: Cluster) -> Plan:
    axes = {axis: numbers.get(axis, 1) for axis in ("tensor", "context", "pipeline")}
    rest = math.prod(axes.values())
    if "data" not in numbers and cluster.gpus % rest:
        raise NoPlan(f"{cluster.gpus} GPUs do not divide over a mesh of {rest} ranks")
    data = numbers.get("data", cluster.gpus // rest)
    micro, batch = _batch(numbers, data, axes["pipeline"])
    named = {name: texts[name].lower() for name in ("schedule", "recompute", "attention")}
    named["precision"] = texts["precision"].lower().replace("fp16", "bf16")
    more = ("expert", "shard", "stage", "reduce_bytes")
    return Plan(
        data=data,
        **axes,
        micro_batch=micro,
        batch=batch,
        virtual=numbers.get("virtual", 1) or 1 if axes["pipeline"] > 1 else 1,
        **{name: numbers[name] for name in more if name in numbers},
        **{name: text for name, text in named.items() if text},
        **{FLAGS[name]: flag for name, flag in flags.items() if name in FLAGS},
    )


def _batch(numbers: dict, data: int, pipeline: int) -> tuple[int, int]:
    """(micro-batch, batch) of a row that gives some of the numbers which determine them."""
    micro, batch = numbers.get("micro_batch"), numbers.get("batch")
    if micro is None and batch is None:
        raise NoPlan("the row gives no batch: expected batch or micro_batch")
    if batch is None:
        batch = micro * data * (numbers.get("accumulation") or 1)
        if pipeline > 1 and not numbers.get("accumulation"):
            micro = 1  # what is given is a replica's batch, which the pipeline cuts
    if micro is None:
        micro = 1 if pipeline > 1 or batch % data else batch // data
    return micro, batch


def _states(stack: str, texts: dict, flags: dict, numbers: dict) -> Workload:
    """A row that asks for the memory of model states alone."""
    data = numbers.get("data") or numbers.get("gpus") or 1
    stage, parameters = numbers.get("stage", 0), numbers["parameters"]
    if stage not in (0, 1, 2, 3):
        raise NoPlan(f"stage={stage}: expected one of (0, 1, 2, 3)")
    offload, held = flags.get("offload", False), 0.0
    if texts["method"].lower() == "deepspeed":
        option = "offload_optimizer=cpu" if offload else ""
        held = memory.deepspeed(stage, parameters, numbers.get("largest_layer", 0.0), data, option)
    plan = Plan(data=data, stage=stage, batch=data, offload=offload)
    cluster = Cluster(gpu(texts["gpu"]), data)
    return Workload(stack, cluster, plan, parameters=parameters, held=held)
