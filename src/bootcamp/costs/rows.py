"""From a row of a table to a model, a cluster and a plan: `rows.read({"gpus": "8", ...})`.

The published tables name the same thing in many ways; NAMES lists them. What a row leaves blank
comes from its stack (constants.toml), else from the defaults below. Standard library only.
"""

import math
import re
from dataclasses import dataclass, replace

from bootcamp.costs import peak, shapes, stacks, words
from bootcamp.costs.hardware import GB, Cluster, Gpu, gpu
from bootcamp.costs.setting import Plan, check
from bootcamp.costs.shapes import Shape

# field: the names that columns of the published tables give it, plain
NAMES = {
    "gpus": "gpus ngpus numgpus gpucount devices worldsize",
    "hosts": "nodes nnodes numnodes hosts servers",
    "batch": "batch globalbatch gbs globalbatchsize",
    "micro_batch": "microbatch mbs localbatch batchpergpu microbatchsize localbatchsize "
    "perdevicebatch perdevicebatchsize devicebatchsize",
    "hidden": "hidden hiddensize hiddendim dmodel width",
    "heads": "heads attentionheads numheads nheads numattentionheads",
    "layers": "layers numlayers nlayers depth",
    "sequence_length": "seqlen sequencelength contextlength seqlength maxseqlen maxsequencelength "
    "blocksize seq",
    "vocabulary": "vocab vocabulary vocabsize",
    "key_heads": "kvheads keyheads numkvheads nkvheads numkeyvalueheads",
    "inner": "ffn inner ffnhidden ffnhiddensize intermediatesize dff",
    "experts": "experts numexperts nexperts",
    "chosen": "topk chosen moetopk numexpertspertok expertspertoken",
    "tensor": "tp tensor tensorparallelism tensorparallel tensorparallelsize tpsize "
    "tensormodelparallelsize",
    "data": "dp data dataparallelism dataparallel dataparallelsize dpsize",
    "pipeline": "pp pipeline pipelineparallelism pipelineparallel pipelineparallelsize ppsize "
    "pipelinemodelparallelsize",
    "context": "cp context contextparallelism contextparallel contextparallelsize",
    "expert": "ep expert expertparallelism expertparallel expertmodelparallelsize",
    "virtual": "interleavev vp vpp virtual virtualpipeline interleave",
    "shard": "shard hsdpshard",
    "stage": "stage zero zerostage",
    "fsdp": "fsdp",
    "accumulation": "gradaccum accumulation gradaccumulation gradientaccumulation "
    "gradientaccumulationsteps microbatches nummicrobatches",
    "per_replica": "batchperdp",
    "model_size": "mpsize",
    "per_host": "gpuspernode gpusperhost gpusperserver devicespernode",
    "host_gb_s": "hostgbs",
    "reduce_bytes": "reducebytes",
    "parameters": "params parameters numparams",
    "billions": "paramsb parametersbillion billionparameters",
}
NAMES = {field: tuple(names.split()) for field, names in NAMES.items()}
REAL = ("host_gb_s", "parameters", "billions")  # the others are whole numbers
WORDS = """
    model gpu hardware system network inter section technique techniques parallelism act_ckpt
    recompute precision sharding scheme method compile schedule attention overlap sequence
    conditions experiment workload mode nvlink fused_loss early_stop option api cpu_offload
"""
# columns that are called by another name elsewhere
CALLED = {"gpu": "hardware system accelerator gpu_type gpu_name device section"}
CALLED |= {"precision": "dtype", "recompute": "activation_checkpointing recomputation"}
BLANK = ("-", "--", "n/a", "na", "none", "null", "—")  # in a column of numbers
LARGEST = 1e9  # of a whole number; parameters and bandwidths may be larger
TEXTS = tuple(WORDS.split())
PCIE_3 = 6e9  # bytes/s of an all-reduce through the host's memory, about half of a slot's 12
MAY_BE_ZERO = ("stage", "shard", "fsdp", "virtual", "accumulation")


class NoPlan(ValueError):
    """A row that names no plan, or one that cannot be; the text says why."""


@dataclass(frozen=True)
class Case:
    """What a row asks. shape: None where it gives a number of parameters alone.

    held: bytes of its states where a formula of its own gives them. pieces: model, or a layer.
    like: the stack whose columns the row has.
    """

    stack: str
    table: str
    cluster: Cluster
    plan: Plan
    shape: Shape | None = None
    parameters: float = 0.0
    image_model: str = ""
    pieces: str = "model"
    method: str = ""
    held: float = 0.0
    like: str = ""


def read(row: dict[str, str]) -> Case:
    """What a row asks. Raises NoPlan with a sentence for one that has no answer."""
    try:
        return _read(row)
    except NoPlan:
        raise
    except ValueError as problem:
        raise NoPlan(str(problem)) from None


def _read(row: dict[str, str]) -> Case:
    stack = str(row.get("stack") or "")
    family = stacks.family(stack)
    table = stack.strip().removesuffix(".csv").lower()
    given = {_plain(key): _text(value) for key, value in row.items() if key is not None}
    columns = {_plain(key): str(key).strip() for key in row if key is not None}
    like, of = (family, table) if family else _like(set(given))
    about = stacks.families().get(like, {"row": {}})
    unsaid = about["row"] | about.get("rows", {}).get(of, {})
    numbers, texts = {}, {name: given.get(_plain(name), "") for name in TEXTS}
    for source in ({_plain(k): str(v) for k, v in unsaid.items()}, given):
        numbers |= _numbers(source, columns)
    for field, others in CALLED.items():
        for other in others.split():
            texts[field] = texts[field] or given.get(_plain(other), "")
    if texts["sequence"].isdigit():  # a length, not whether sequence parallelism is on
        numbers.setdefault("sequence_length", int(texts["sequence"]))
        texts["sequence"] = ""
    texts |= {k: str(v) for k, v in unsaid.items() if k in texts and not texts[k]}
    words.understand(texts, numbers)
    if images := words.image_model(texts["model"]):
        cluster, plan = _cluster(texts, numbers), _shares(numbers)
        return Case(family, table, cluster, plan, image_model=images, method=images)
    shape = _shape(texts, numbers)
    if shape is None:
        return _states(family, table, texts, numbers)
    cluster = _cluster(texts, numbers)
    plan = _plan(texts, numbers, cluster)
    check(shape, cluster, plan, uneven=bool(shapes.named(texts["model"])))
    pieces = "layer" if texts["conditions"] else "model"
    method = _method(texts)
    return Case(family, table, cluster, plan, shape, pieces=pieces, method=method, like=like)


def _like(columns: set[str]) -> tuple[str, str]:
    """(stack, table) whose columns these are; ("", "") for none."""
    for stack, about in stacks.families().items():
        for table, names in about.get("known", {}).items():
            if columns.issuperset(names):
                return stack, table
    return "", ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _text(value) -> str:
    return "" if value is None else str(value).strip()


def _numbers(given: dict[str, str], columns: dict[str, str]) -> dict[str, float]:
    """{field: number} of what is not blank. Raises NoPlan for what is no number above zero.

    columns: {plain name: as it stands in the table}, for the sentence.
    """
    found = {}
    for field, names in NAMES.items():
        for name in names:
            text = given.get(name.replace(" ", ""), "")
            if not text or field in found or text.lower() in BLANK:
                continue
            found[field] = _number(columns.get(name, name), field, text)
    return found


def _number(name: str, field: str, text: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return _odd(name, field, text)
    if not math.isfinite(value) or value < 0 or (value == 0 and field not in MAY_BE_ZERO):
        raise NoPlan(f"{name}={text}: expected a number above zero")
    if field not in REAL and value != int(value):
        raise NoPlan(f"{name}={text}: expected a whole number")
    if value > (1e18 if field in REAL else LARGEST):
        raise NoPlan(f"{name}={text}: too large, expected at most {LARGEST:.0e}")
    return value if field in REAL else int(value)


def _odd(name: str, field: str, text: str) -> float:
    """A number with its unit in it: "7.5B" parameters, "8k" tokens, stage "ZeRO-3"."""
    plain = text.lower().replace(" ", "")
    if field == "parameters" and (match := re.fullmatch(r"([\d.]+)([mbt])", plain)):
        return _number(name, field, match[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[match[2]]
    if field == "sequence_length" and (match := re.fullmatch(r"(\d+)k", plain)):
        return int(match[1]) * 1024
    if field == "stage" and (match := re.fullmatch(r"(zero|stage)-?([0-3])", plain)):
        return int(match[2])
    raise NoPlan(f"{name}={text!r} is not a number")


def _needed(numbers: dict, field: str):
    if field not in numbers:
        raise NoPlan(f"{NAMES[field][0]} is missing: one of {', '.join(NAMES[field])} is needed")
    return numbers[field]


def _shape(texts: dict, numbers: dict) -> Shape | None:
    """The model, by its name and the sizes that the row gives; None if it has neither."""
    fields = ("layers", "hidden", "heads")
    sizes = {key: numbers.get(key) for key in fields}
    more = {key: numbers.get(key) for key in ("key_heads", "inner", "experts", "chosen")}
    sequence, vocabulary = numbers.get("sequence_length"), numbers.get("vocabulary")
    if all(sizes.values()):
        vocabulary = 0 if texts["conditions"] else vocabulary or 50257
        sequence = _needed(numbers, "sequence_length")
        more = {key: value for key, value in more.items() if value}
        gated = "inner" in more
        if shape_of := shapes.named(texts["model"]):  # what the row leaves unsaid of it
            same = all(getattr(shape_of, key) == size for key, size in sizes.items())
            if same and not more:
                return shapes.at(shape_of, sequence=sequence, vocabulary=vocabulary)
        return Shape(*sizes.values(), sequence, vocabulary, **more, gated=gated, tied=not gated)
    known = shapes.named(texts["model"]) if texts["model"] else None
    if "parameters" in numbers and not {"batch", "micro_batch", "per_replica"} & set(numbers):
        return None  # it asks for the states of so many parameters
    if known is not None:
        given = {**sizes, **more, "sequence": sequence, "vocabulary": vocabulary}
        return shapes.at(known, **given)
    if any(sizes.values()):
        for key in fields:
            _needed(numbers, key)
    if numbers.get("parameters") or numbers.get("billions"):
        return None
    if texts["model"]:
        raise NoPlan(f"model={texts['model']!r} is not known, and the row gives no sizes of it")
    raise NoPlan("the row names no model: expected model, or layers, hidden and heads")


def _method(texts: dict) -> str:
    return "ZeRO-3" if texts["scheme"].startswith("ZeRO-3") else texts["method"]


def _gpu(texts: dict) -> Gpu:
    return gpu(texts["gpu"] or "A100")


def _cluster(texts: dict, numbers: dict) -> Cluster:
    device = _gpu(texts)
    if texts["nvlink"].upper() in ("N", "NO"):
        device = replace(device, bus=PCIE_3)
    per_host = int(numbers.get("per_host", 8))
    axes = [numbers[axis] for axis in ("tensor", "data", "pipeline", "context") if axis in numbers]
    if "hosts" in numbers:
        numbers.setdefault("gpus", numbers["hosts"] * per_host)
    if "data" in numbers:
        numbers.setdefault("gpus", math.prod(axes))
    gpus = int(_needed(numbers, "gpus"))
    newest = device.peak > 400e12
    rate = numbers.get("host_gb_s") or (50 if newest else 25) * per_host
    return Cluster(device, gpus, per_host, rate * GB)


def _shares(numbers: dict) -> Plan:
    """Data parallelism alone."""
    gpus, each = int(_needed(numbers, "gpus")), int(_needed(numbers, "micro_batch"))
    return Plan(data=gpus, micro_batch=each, batch=gpus * each)


def _plan(texts: dict, numbers: dict, cluster: Cluster) -> Plan:
    axes = {axis: int(numbers.get(axis, 1)) for axis in ("tensor", "context", "pipeline")}
    rest = math.prod(axes.values())
    data = numbers.get("data")
    if data is None:
        if cluster.gpus % rest:
            raise NoPlan(f"{cluster.gpus} GPUs do not divide over a mesh of {rest} ranks")
        data = cluster.gpus // rest
    data = int(data)
    micro, batch = _batch(numbers, data, axes["pipeline"])
    flags = words.flags(texts, numbers)
    virtual = int(numbers.get("virtual", 1)) or 1
    return Plan(
        data=data,
        **axes,
        expert=int(numbers.get("expert", 1)),
        shard=int(numbers.get("shard", 0)),
        micro_batch=micro,
        batch=batch,
        virtual=virtual if axes["pipeline"] > 1 else 1,
        reduce_bytes=int(numbers.get("reduce_bytes", 2)),
        **flags,
    )


def _batch(numbers: dict, data: int, pipeline: int) -> tuple[int, int]:
    """(micro-batch, batch) of a row that gives some of the numbers which determine them."""
    micro, batch = numbers.get("micro_batch"), numbers.get("batch")
    if batch is None and "per_replica" in numbers:
        batch = numbers["per_replica"] * data
    if micro is None and batch is None:
        raise NoPlan("the row gives no batch: expected global_batch or micro_batch")
    if batch is None:
        batch = micro * data * (numbers.get("accumulation") or 1)
        if pipeline > 1 and not numbers.get("accumulation"):
            micro = 1  # what is given is a replica's batch, which the pipeline cuts
    if micro is None:
        micro = 1 if pipeline > 1 or batch % data else batch // data
    if numbers.get("local") and pipeline > 1:
        micro = 1
    return int(micro), int(batch)


def _states(family: str, table: str, texts: dict, numbers: dict) -> Case:
    """A row that asks for the memory of model states alone."""
    parameters = numbers.get("parameters") or numbers["billions"] * 1e9
    data = int(numbers.get("data") or numbers.get("gpus") or 1)
    stage = int(numbers.get("stage", 0))
    if stage not in (0, 1, 2, 3):
        raise NoPlan(f"stage={stage}: expected one of (0, 1, 2, 3)")
    plan = Plan(data=data, stage=stage, batch=data)
    cluster = Cluster(gpu(texts["gpu"] or "A100"), data)
    held = 0.0
    if texts["api"]:
        largest = numbers.get("largest", 0.0)
        held = peak.deepspeed(stage, parameters, largest, data, texts["option"])
    return Case(family, table, cluster, plan, parameters=parameters, held=held)
