"""Read one row of a table of plans: `rows.read({"gpus": "8", "model": "Llama 3 8B", ...})`.

A blank is filled in by the row's stack (`row` in constants.toml), else as COLUMNS says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial

from bootcamp.costs import convolutional, fitted_constants, memory, model_shapes
from bootcamp.costs.hardware import GB, Cluster, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plans import Plan, check

LARGEST = 10**9  # of a whole number
PCIE_3 = 6e9  # bytes/s of an all-reduce through the host's memory, about half of a slot's 12


def number(text: str, zero: bool = False, whole: bool = True) -> float:
    """A finite number above zero. zero: or zero itself. whole: and no fraction."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        raise ValueError("expected a number") from None
    if not (0 < value < math.inf or (zero and value == 0)):
        raise ValueError("expected a number above zero")
    if not whole:
        return value
    if value != int(value):
        raise ValueError("expected a whole number")
    if value > LARGEST:
        raise ValueError(f"too large, expected at most {LARGEST:,}")
    return int(value)


def flag(text: str) -> bool:
    """yes or no."""
    if text.lower() not in YES + NO:
        raise ValueError("expected yes or no")
    return text.lower() in YES


def word(text: str) -> str:
    """One of the words that setting.check knows, in lower case; fp16 is as fast as bf16."""
    return text.lower().replace("fp16", "bf16")


YES, NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")
count, real = partial(number, zero=True), partial(number, whole=False)
BLANK = ("", "-", "--", "n/a", "na", "none", "null")  # of what is no text
COLUMNS: dict[str, tuple[Callable, str]] = {
    "stack": (str, "software whose fitted constants apply, see --stacks; blank: one never seen"),
    "method": (str, "framework or ZeRO-3, in stacks whose tables compare several"),
    "model": (str, "a name in published/models.csv or cnns.csv; sizes in the row replace its own"),
    "gpu": (str, "a name in published/gpus.csv; A100 80GB"),
    "gpus": (number, "all GPUs; by default the product of tensor, data, pipeline and context"),
    "gpus_per_host": (number, "8"),
    "host_gb_s": (real, "1e9 bytes/s that a host sends; 25 for each GPU, 50 from H100 on"),
    "nvlink": (flag, "no: a host's GPUs are joined by PCIe alone"),
    "batch": (number, "samples of a step, all GPUs together; micro_batch x data x accumulation"),
    "micro_batch": (number, "samples of one forward pass; 1 in a pipeline, else batch / data"),
    "accumulation": (count, "micro-batches of a step, where batch is blank"),
    "layers": (number, "needs hidden and heads too"),
    "hidden": (number, "width of the model"),
    "heads": (number, "attention heads"),
    "key_heads": (number, "heads of keys and values; heads"),
    "inner": (number, "width of a gated MLP of three matrices; blank: two matrices, 4 x hidden"),
    "vocabulary": (number, "the model's, else 50257"),
    "sequence_length": (number, "tokens of a sample; the model's"),
    "experts": (number, "MLPs of a layer; 1"),
    "chosen": (number, "experts that a token passes; 1"),
    "parameters": (real, "without batch and micro_batch: the memory of this many's states alone"),
    "largest_layer": (real, "its parameters, for method DeepSpeed and stage 3"),
    "one_layer": (flag, "yes: forward and backward of one layer alone"),
    "tensor": (number, "tensor-parallel ranks; 1"),
    "data": (number, "data-parallel ranks; what the other axes leave of gpus"),
    "pipeline": (number, "pipeline ranks; 1"),
    "context": (number, "context-parallel ranks; 1"),
    "expert": (number, "data ranks that share the experts; 1"),
    "virtual": (count, "stages of a pipeline rank; 1"),
    "schedule": (word, "1f1b, gpipe, interleaved, zero-bubble or zb-v; 1f1b"),
    "shard": (count, "ranks among which HSDP shards; 0 is all"),
    "stage": (count, "of ZeRO: 0 to 3, 3 is FSDP; 0"),
    "recompute": (
        word,
        "none, selective (attention), selective op (half of a layer) or full; none",
    ),
    "precision": (word, "bf16 (or fp16), fp8 or fp32; bf16"),
    "compile": (flag, "yes: compiled layers; no"),
    "attention": (word, "fused (FlashAttention), softmax (fused softmax) or unfused; fused"),
    "sequence_parallel": (flag, "yes: tensor ranks share what lies between their matrices; no"),
    "async_tensor": (flag, "yes: tensor collectives overlap with products in pieces; no"),
    "keep_gathered": (flag, "yes: FSDP gathers once a step (SHARD_GRAD_OP); no"),
    "offload": (flag, "yes: the optimizer's state is in the host's memory; no"),
    "overlap": (flag, "no: gradients are reduced after the backward pass; yes"),
    "fused_loss": (flag, "yes: no full copy of the scores; no"),
    "early_stop": (flag, "no: recomputation repeats a layer's last product; yes"),
    "reduce_bytes": (number, "bytes of a gradient's number on the wire; 2"),
}
ALIASES = {"tp": "tensor", "dp": "data", "pp": "pipeline", "cp": "context", "ep": "expert"}
ALIASES |= {"vp": "virtual", "global_batch": "batch"}
UNREAD = ("row_id", "source", "note")  # and published_*: allowed, and not read
AXES = ("data", "tensor", "pipeline", "context")
# fields of a Plan that have another name in a table
FIELDS = {"compile": "compiled", "sequence_parallel": "sequence", "async_tensor": "asynchronous"}


@dataclass(frozen=True)
class Workload:
    """A model on a cluster by a plan.

    shape: None where the row gives a number of parameters alone, whose states have states_bytes.
    image_model: a convolutional network, else "".
    """

    stack: str
    cluster: Cluster
    plan: Plan
    shape: Model | None = None
    method: str = ""
    image_model: str = ""
    one_layer: bool = False
    states_bytes: float = 0.0


def unknown(columns, passed=()) -> list[str]:
    """Return those of the columns that nobody reads, each with a column of a similar name."""
    known, found = {*COLUMNS, *ALIASES, *UNREAD, *passed}, []
    for column in map(str, columns):
        name = column.strip().lower()
        if name not in known and not name.startswith("published_"):
            near = get_close_matches(name, COLUMNS, 1, 0.5)
            found.append(f"{column} (did you mean {near[0]}?)" if near else column)
    return found


def read(row: dict[str, str]) -> Workload:
    """Return what a row asks. Raises ValueError with a sentence for one that has no answer."""
    given = _values(row)
    stack, model = given.get("stack", ""), given.get("model", "")
    if image_model := convolutional.find(model):
        cluster = _cluster(given)
        each = given["micro_batch"]
        plan = Plan(data=cluster.gpus, micro_batch=each, batch=cluster.gpus * each)
        return Workload(stack, cluster, plan, method=image_model, image_model=image_model)
    if "parameters" in given and not {"batch", "micro_batch"} & set(given):
        return _states(stack, given)
    one_layer = given.get("one_layer", False)
    if one_layer:
        given |= {"layers": 1, "gpus": given.get("tensor", 1), "batch": given["micro_batch"]}
    shape, cluster = _shape(model, given), _cluster(given)
    plan = _plan(_complete(given))
    check(shape, cluster, plan, uneven=bool(model_shapes.named(model)))
    return Workload(stack, cluster, plan, shape, given.get("method", ""), one_layer=one_layer)


class Given(dict):
    """{column: value} of what a row gives."""

    def __missing__(self, column: str):
        raise ValueError(f"{column} is missing")


def _values(row: dict[str, str]) -> Given:
    """Read what the row gives, or its stack in its place."""
    texts = {}
    for column, value in row.items():
        spelled = str(column).strip()
        name = ALIASES.get(spelled.lower(), spelled.lower())
        text = "" if value is None else str(value).strip()
        if name in COLUMNS and (text.lower() not in BLANK or (COLUMNS[name][0] is word and text)):
            texts[name] = spelled, text
    _, stack = texts.get("stack", ("", ""))
    known = fitted_constants.families().get(fitted_constants.family(stack), {"row": {}})
    usual = {"gpu": "A100 80GB", "gpus_per_host": 8, **known["row"]}
    found = Given()
    for name, (spelled, text) in ({n: (n, f"{v}") for n, v in usual.items()} | texts).items():
        try:
            found[name] = COLUMNS[name][0](text)
        except ValueError as problem:
            raise ValueError(f"{spelled}={text}: {problem}") from None
    return found


def _states(stack: str, given: Given) -> Workload:
    """A row that asks for the memory of model states alone."""
    parameters, data = given["parameters"], given.get("data") or given.get("gpus", 1)
    plan = _plan(given | {"data": data, "batch": data, "micro_batch": 1})
    if plan.stage > 3:
        raise ValueError(f"stage={plan.stage}: expected one of (0, 1, 2, 3)")
    if given.get("method", "").lower() == "deepspeed":
        option = "offload_optimizer=cpu" if plan.offload else ""
        largest = given.get("largest_layer", 0.0)
        held = memory.deepspeed(plan.stage, parameters, largest, data, option)
    else:
        held = sum(memory.states(parameters, plan).values())
    return Workload(stack, Cluster(gpu(given["gpu"]), data), plan, states_bytes=held)


def _shape(name: str, given: Given) -> Model:
    """The model, by its name and the sizes that the row gives."""
    known = model_shapes.named(name) if name else None
    ends = {"sequence": given.get("sequence_length"), "vocabulary": given.get("vocabulary")}
    if given.get("one_layer"):
        ends["vocabulary"] = 0
    sizes = {size: given.get(size) for size in ("layers", "hidden", "heads")}
    more = {size: given.get(size) for size in ("key_heads", "inner", "experts", "chosen")}
    other = any(more.values()) or any(getattr(known, size, 0) != sizes[size] for size in sizes)
    if known and not (other and all(sizes.values())):
        return model_shapes.at(known, **sizes, **more, **ends)
    if not any(sizes.values()):
        if name:
            raise ValueError(f"model={name!r} is not known, and the row gives no sizes of it")
        raise ValueError("the row names no model: expected model, or layers, hidden and heads")
    shape = Model(
        *(given[size] for size in (*sizes, "sequence_length")),
        vocabulary=50257 if ends["vocabulary"] is None else ends["vocabulary"],
        gated="inner" in given,
        tied="inner" not in given,
    )
    return model_shapes.at(shape, **more)


def _cluster(given: Given) -> Cluster:
    device = gpu(given["gpu"])
    if not given.get("nvlink", True):
        device = replace(device, bus=PCIE_3)
    if "data" in given:
        given.setdefault("gpus", _ranks(given, *AXES))
    per_host = given["gpus_per_host"]
    rate = given.get("host_gb_s") or (50 if device.peak > 400e12 else 25) * per_host
    return Cluster(device, given["gpus"], per_host, rate * GB)


def _ranks(given: Given, *axes: str) -> int:
    return math.prod(given.get(axis, 1) for axis in axes)


def _plan(given: dict) -> Plan:
    names = {field.name for field in fields(Plan)}
    found = {FIELDS.get(column, column): value for column, value in given.items()}
    return Plan(**{name: value for name, value in found.items() if name in names})


def _complete(given: Given) -> dict:
    """Add what the row's numbers determine: data ranks, micro-batch and batch."""
    gpus, pipeline, others = given["gpus"], given.get("pipeline", 1), _ranks(given, *AXES[1:])
    if "data" not in given and gpus % others:
        raise ValueError(f"{gpus} GPUs do not divide over a mesh of {others} ranks")
    data = given.get("data", gpus // others)
    names = ("micro_batch", "batch", "accumulation", "virtual")
    micro, batch, accumulation, virtual = (given.get(name) for name in names)
    if micro is None and batch is None:
        raise ValueError("the row gives no batch: expected batch or micro_batch")
    if batch is None:
        batch = micro * data * (accumulation or 1)
        if pipeline > 1 and not accumulation:
            micro = 1  # what is given is a replica's batch, which the pipeline cuts
    if micro is None:
        micro = 1 if pipeline > 1 or batch % data else batch // data
    virtual = virtual or 1 if pipeline > 1 else 1
    return given | {"data": data, "virtual": virtual, "micro_batch": micro, "batch": batch}
