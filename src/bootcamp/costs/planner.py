"""The planner: `planner.answer(planner.read({"gpus": "8", "model": "Llama 3 8B", ...}))`.

A row of a table of plans becomes a workload; a blank is filled in by the row's stack (`row` in
constants.toml), else as COLUMNS says. The answer is seconds, tokens, MFU, peak and what limits.

MFU counts the model's FLOPs with attention in full, as if not causal, over the GPU's dense peak in
16 bit (Chowdhery et al., arXiv:2204.02311, appendix B); HFU adds what is computed again.
"""

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, partial

from bootcamp.costs import failures, fitted_constants, memory, model_shapes, published
from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import GB, Cluster, gpu
from bootcamp.costs.model_shapes import Model, plain_name
from bootcamp.costs.plans import Plan, check, list_candidates
from bootcamp.costs.step import Step, network_seconds

LARGEST = 10**9  # of a whole number
PCIE_3 = 6e9  # bytes/s of an all-reduce through the host's memory, about half of a slot's 12


def number(text: str, zero: bool = False, whole: bool = True) -> float:
    """Read a finite number above zero. zero: or zero itself. whole: and no fraction."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        raise ValueError("expected a number") from None
    if not (0 < value < math.inf or (zero and value == 0)):
        raise ValueError("expected a number above zero")
    if whole and value != int(value):
        raise ValueError("expected a whole number")
    if whole and value > LARGEST:
        raise ValueError(f"too large, expected at most {LARGEST:,}")
    return int(value) if whole else value


def flag(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError("expected yes or no")
    return text.lower() in YES


def word(text: str) -> str:
    """Read a word of plans.KNOWN, in lower case; fp16 is as fast as bf16."""
    return text.lower().replace("fp16", "bf16")


YES, NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")
count, real = partial(number, zero=True), partial(number, whole=False)
BLANK = ("", "-", "--", "n/a", "na", "none", "null")  # of what is no text
STACKS = f"software whose fitted constants apply ({', '.join(fitted_constants.STACKS)})"
COLUMNS: dict[str, tuple[Callable, str]] = {
    "stack": (str, f"{STACKS}; blank: one never seen"),
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
    "recompute": (word, "none, selective (attention), selective op (half a layer) or full; none"),
    "precision": (word, "bf16 (or fp16), fp8 or fp32; bf16"),
    "compile": (flag, "yes: compiled layers; no"),
    "attention": (word, "fused (FlashAttention-2), flash 1, flash 3, softmax or unfused; fused"),
    "sequence_parallel": (flag, "yes: tensor ranks share what lies between their matrices; no"),
    "async_tensor": (flag, "yes: tensor collectives overlap with products in pieces; no"),
    "keep_gathered": (flag, "yes: FSDP gathers once a step (SHARD_GRAD_OP); no"),
    "offload": (flag, "yes: the optimizer's state is in the host's memory; no"),
    "overlap": (flag, "no: gradients are reduced after the backward pass; yes"),
    "fused_loss": (flag, "yes: no full copy of the scores; no"),
    "early_stop": (flag, "no: recomputation repeats a layer's last product; yes"),
    "reduce_bytes": (number, "bytes of a gradient's number on the wire; 2"),
    "tokens": (real, "of the whole training, for its days, GPU hours, dollars and energy"),
    "dollars_per_hour": (real, "of a GPU; 2, as for an H800 in arXiv:2412.19437, table 1"),
}
ALIASES = {"tp": "tensor", "dp": "data", "pp": "pipeline", "cp": "context", "ep": "expert"}
ALIASES |= {"vp": "virtual", "global_batch": "batch"}
AXES = ("data", "tensor", "pipeline", "context")


@dataclass(frozen=True)
class Workload:
    """A model on a cluster by a plan: of a shape, a network, or a number of parameters alone."""

    stack: str
    cluster: Cluster
    plan: Plan
    shape: Model | None = None
    method: str = ""
    network: dict[str, str] | None = None  # a row of published/cnns.csv
    one_layer: bool = False
    states_bytes: float = 0.0  # of the number of parameters
    tokens: float = 0.0  # of the whole training
    dollars: float = failures.DOLLARS  # for an hour of a GPU


def read(row: dict[str, str]) -> Workload:
    """Read a row. Raises ValueError with a sentence for one that has no answer."""
    given = _read_values(row)
    stack, model, method = (given.get(name, "") for name in ("stack", "model", "method"))
    # of convolutions of stride 1 Winograd's algorithm saves 3/4 of the multiplications for 3 x 3
    # kernels, 16/25 for 5 x 5 (arXiv:1509.09308)
    networks = {plain_name(row["model"]): row for row in published.table("cnns")}
    if network := networks.get(plain_name(model)):
        cluster, each = _make_cluster(given), given["micro_batch"]
        plan = Plan(data=cluster.gpus, micro_batch=each, batch=cluster.gpus * each)
        return Workload(stack, cluster, plan, method=network["model"], network=network)
    if "parameters" in given and not {"batch", "micro_batch"} & set(given):
        return _read_states(stack, given)
    one_layer = given.get("one_layer", False)
    if one_layer:
        given |= {"layers": 1, "gpus": given.get("tensor", 1), "batch": given["micro_batch"]}
    known = model_shapes.find_model(model) if model else None
    shape, cluster = _make_model(known, given), _make_cluster(given)
    plan = _make_plan(_complete(given))
    check(shape, cluster, plan, uneven=bool(known))
    asked = {"tokens": given.get("tokens", 0.0)}
    asked["dollars"] = given.get("dollars_per_hour", failures.DOLLARS)
    return Workload(stack, cluster, plan, shape, method, one_layer=one_layer, **asked)


class _Given(dict):
    """{column: value} of a row and, where it is blank, of its stack."""

    def __missing__(self, column: str):
        raise ValueError(f"{column} is missing")


def _read_values(row: dict[str, str]) -> _Given:
    texts = {}  # {column: (as the row spells it, text)}
    for spelled, value in ((str(column).strip(), value) for column, value in row.items()):
        name = ALIASES.get(spelled.lower(), spelled.lower())
        text = "" if value is None else str(value).strip()
        if name in COLUMNS and (text.lower() not in BLANK or (COLUMNS[name][0] is word and text)):
            texts[name] = spelled, text
    stack = fitted_constants.find_stack(texts.get("stack", ("", ""))[1])
    usual = {"gpu": "A100 80GB", "gpus_per_host": 8}
    usual |= fitted_constants.STACKS[stack]["row"] if stack else {}
    found = _Given()
    for name, (spelled, text) in ({n: (n, str(v)) for n, v in usual.items()} | texts).items():
        try:
            found[name] = COLUMNS[name][0](text)
        except ValueError as problem:
            raise ValueError(f"{spelled}={text}: {problem}") from None
    return found


def _read_states(stack: str, given: _Given) -> Workload:
    """Read a row that asks for the memory of model states alone."""
    parameters, data = given["parameters"], given.get("data") or given.get("gpus", 1)
    plan = _make_plan(given | {"data": data, "batch": data, "micro_batch": 1})
    if plan.stage > 3:
        raise ValueError(f"stage={plan.stage}: expected one of (0, 1, 2, 3)")
    if given.get("method", "").lower() == "deepspeed":
        largest = given.get("largest_layer", 0.0)
        held = memory.deepspeed(plan.stage, parameters, largest, data, plan.offload)
    else:
        held = sum(memory.states(parameters, plan).values())
    return Workload(stack, Cluster(gpu(given["gpu"]), data), plan, states_bytes=held)


def _make_model(known: Model | None, given: _Given) -> Model:
    """Return the known model with the sizes that the row gives in place of its own, or another."""
    names = ("layers", "hidden", "heads")
    sizes, more = _select(given, *names), _select(given, "key_heads", "inner", "experts", "chosen")
    ends = {} if "sequence_length" not in given else {"sequence": given["sequence_length"]}
    ends |= {"vocabulary": 0} if given.get("one_layer") else _select(given, "vocabulary")
    other = more or any(getattr(known, name, 0) != value for name, value in sizes.items())
    if not known or (other and len(sizes) == 3):
        if not sizes and "model" in given:
            name = given["model"]
            raise ValueError(f"model={name!r} is not known, and the row gives no sizes of it")
        if not sizes:
            raise ValueError("the row names no model: expected model, or layers, hidden and heads")
        gated = "inner" in given
        shape = (given[name] for name in (*names, "sequence_length"))
        known = Model(*shape, vocabulary=50257, gated=gated, tied=not gated)
    return replace(known, **sizes, **more, **ends)


def _select(given: dict, *names: str) -> dict:
    return {name: given[name] for name in names if name in given}


def _make_cluster(given: _Given) -> Cluster:
    device = gpu(given["gpu"])
    if not given.get("nvlink", True):
        device = replace(device, bus=PCIE_3)
    if "data" in given:
        given.setdefault("gpus", math.prod(given.get(axis, 1) for axis in AXES))
    per_host = given["gpus_per_host"]
    rate = given.get("host_gb_s") or (50 if device.peak > 400e12 else 25) * per_host
    return Cluster(device, given["gpus"], per_host, rate * GB)


def _make_plan(given: dict) -> Plan:
    return Plan(**_select(given, *(field.name for field in fields(Plan))))


def _complete(given: _Given) -> dict:
    """Add the data ranks, micro-batch and batch that follow from the row's other numbers."""
    gpus, pipeline = given["gpus"], given.get("pipeline", 1)
    others = math.prod(given.get(axis, 1) for axis in AXES[1:])
    if "data" not in given and gpus % others:
        raise ValueError(f"{gpus} GPUs do not divide over a mesh of {others} ranks")
    data = given.get("data", gpus // others)
    micro, batch, accumulation = map(given.get, ("micro_batch", "batch", "accumulation"))
    if micro is None and batch is None:
        raise ValueError("the row gives no batch: expected batch or micro_batch")
    if batch is None:
        batch = micro * data * (accumulation or 1)
        if pipeline > 1 and not accumulation:
            micro = 1  # the row gives a replica's batch, which the pipeline cuts
    if micro is None:
        micro = 1 if pipeline > 1 or batch % data else batch // data
    virtual = given.get("virtual") or 1 if pipeline > 1 else 1
    return given | {"data": data, "virtual": virtual, "micro_batch": micro, "batch": batch}


ENOUGH = 0.7  # a step that computes for this share of its time is limited by compute
WORDS = {
    "host": "launches from the host",
    "tensor": "tensor-parallel collectives",
    "context": "context-parallel collectives",
    "expert": "all-to-all of the experts",
    "data": "gradients and parameters on the links",
    "pipeline": "links between pipeline stages",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimizer",
}


@dataclass(frozen=True)
class Answer:
    """The prediction of a plan; None where the row does not say enough."""

    peak_bytes: float
    limit: str
    seconds: float | None = None  # of a step
    tokens: float | None = None  # a second and GPU; samples for images
    mfu: float | None = None
    hfu: float | None = None
    parts: dict[str, float] = field(default_factory=dict)  # seconds


def answer(case: Workload, constants: Constants | None = None) -> Answer:
    """Answer a row of a table. constants: those of its table by default."""
    device, plan, model = case.cluster.gpu, case.plan, case.shape
    if case.states_bytes:
        return Answer(case.states_bytes, "memory" if case.states_bytes > device.memory else "")
    c = constants or fitted_constants.find_constants(case.stack, device.name, case.method)
    if case.network:
        held = 12e6 * float(case.network["millions"])  # float32 with SGD's momentum, no activations
        parts = network_seconds(case.network, case.cluster, plan, c)
    elif case.one_layer:
        held = memory.layer_bytes(model, plan)
        parts = Step(model, case.cluster, plan, c).layer_parts()
    else:
        held = c.reserved * sum(memory.find_fullest_rank(model, plan).values())
        parts = Step(model, case.cluster, plan, c).parts()
    seconds, limit = sum(parts.values()), _name_limit(parts, held, device.memory)
    if case.network:
        return Answer(held, limit, seconds, plan.micro_batch / seconds, parts=parts)
    if case.one_layer:
        return Answer(held, "compute", seconds, parts=parts)
    tokens = plan.batch * model.sequence / seconds / case.cluster.gpus
    mfu = tokens * model.flops_of_token() / device.peak
    hfu = mfu + tokens * model.recomputed_of_token(plan.recompute) / device.peak
    return Answer(held, limit, seconds, tokens, mfu, hfu, parts)


def surround(case: Workload, found: Answer) -> dict[str, float]:
    """Return {"low", "high"} of the seconds, and failures.bill where a row has tokens to train."""
    if found.seconds is None:
        return {}
    gpus, names = case.cluster.gpus, ("low", "high")
    more = dict(zip(names, fitted_constants.interval(found.seconds, case.stack, gpus), strict=True))
    if case.tokens and found.tokens:
        more |= failures.bill(case.tokens, found.tokens, case.cluster.gpu, gpus, case.dollars)
    return more


@cache
def predict(model: Model, cluster: Cluster, plan: Plan) -> Answer:
    """Predict a possible plan by the constants of a stack never seen."""
    return answer(Workload("", cluster, plan, model))


def search(model: Model, cluster: Cluster, batch: int, most: int = 1, **given) -> list[tuple]:
    """Find [(plan, answer)] of the fastest plans that fit, the fastest first, perhaps none.

    Of all candidates those that may be among them are predicted: the others' layers alone take
    longer, or their memory does not suffice. given: as of plans.list_candidates.
    """
    found, floors = [], []
    reserved = fitted_constants.find_constants("", cluster.gpu.name).reserved
    for plan in list_candidates(model, cluster, batch, **given):
        p, least = plan.pipeline, _layer_seconds(model, cluster, replace(plan, **ALONE))
        bubble = (p - 1) / {"zero-bubble": 3, "zb-v": 6}.get(plan.schedule, plan.virtual)
        # the last stage may have the head in place of a layer
        least *= model.layers / p * (plan.micro_batches + bubble) - (p > 1)
        floors.append((least, len(floors), plan))
    for floor, _, plan in sorted(floors):
        if len(found) >= most and floor > found[most - 1][1].seconds:
            break
        if reserved * sum(memory.find_fullest_rank(model, plan).values()) <= cluster.gpu.memory:
            insort(found, (plan, predict(model, cluster, plan)), key=lambda pair: pair[1].seconds)
    return found[:most]


ALONE = {"data": 1, "pipeline": 1, "virtual": 1, "stage": 0, "shard": 0, "keep_gathered": False}


@lru_cache(maxsize=10_000)
def _layer_seconds(model: Model, cluster: Cluster, plan: Plan) -> float:
    constants = fitted_constants.find_constants("", cluster.gpu.name)
    step = Step(model, cluster, plan, constants)
    return sum(step.layer_parts().values(), sum(step.waits["context"] + step.waits["expert"]))


def _name_limit(parts: dict[str, float], held: float, available: float) -> str:
    """Name the memory where it does not suffice, else the part that costs most."""
    if held > available:
        return f"memory: {held / GB:.1f} GB do not fit {available / GB:.0f} GB"
    if parts["compute"] >= ENOUGH * sum(parts.values()):
        return "compute"
    return WORDS[max(WORDS, key=lambda name: parts.get(name, 0.0))]
