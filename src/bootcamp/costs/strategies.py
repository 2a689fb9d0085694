"""What a GPT's training holds on one rank, by formula, for each way of using several ranks.

The state is sharding.rank_bytes (ZeRO, arXiv:1910.02054, section 5). The number of
parameters is equation 2 of Narayanan et al. (arXiv:2104.04473); activations are those of
Korthikanti et al. (arXiv:2205.05198, equations 1 and 2, section 4.3), for 16 and for 32 bit.
"""

from math import ceil

from bootcamp.costs import model_shapes, published
from bootcamp.costs.memory import layer_bytes
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.setting import Plan
from bootcamp.costs.sharding import FLOAT32, MIXED, rank_bytes

PRECISIONS = {"bf16 mixed": MIXED, "fp32": FLOAT32}
NUMBER = {"bf16 mixed": 2, "fp32": 4}  # bytes of an activation
KEPT = ("all", "all but attention's matrix", "each layer's input")


def gpus() -> list[int]:
    """Sizes of GPU memory that are sold, in GB."""
    return [int(row["gb"]) for row in published.table("gpu_memory")]


def gpu_memory() -> dict[str, float]:
    """{the name of a GPU with this memory: GB}."""
    return {row["gpu"].split()[0]: float(row["gb"]) for row in published.table("gpu_memory")}


def course_gpt_needs() -> dict[str, list[tuple[float, float]]]:
    """{words: [(parameters, GB)]} of this course's larger GPTs, trained in float32 with AdamW.

    State, and the activations that each sample adds: lesson 01 counts them.
    """
    needs = {0: [], 1: [], 8: []}
    for size in list(model_shapes.GPT)[1:]:
        layers = model_shapes.layers("gpt", size)
        parameters = model_shapes.parameters("gpt", size)
        for samples, points in needs.items():
            numbers = samples * sum(layer.kept_numbers() for layer in layers)
            points.append((parameters, (sum(FLOAT32.values()) * parameters + 4 * numbers) / 1e9))
    words = {0: "state alone", 1: "state and 1 sample", 8: "state and 8 samples"}
    return {words[samples]: points for samples, points in needs.items()}


def activation_bytes(
    model: Model, samples: int, precision: str = "bf16 mixed", kept: str = "all", tensor: int = 1
) -> float:
    """What the forward of `samples` keeps for the backward, on one of `tensor` ranks.

    For each layer s b h (10 + 24/t + 5 a s/(h t)) bytes in 16 bit: numbers of 2 bytes and dropout
    masks of 1. Without attention's matrix (recomputed, or never stored: FlashAttention) the last
    term is gone. With each layer's input alone it is 2 s b h for each layer, and the layer that is
    being recomputed. Embedding and output: section 4.3, with scores in 32 bit.
    """
    plan = Plan(tensor=tensor, micro_batch=samples, attention="unfused")
    tokens, number = samples * model.sequence, NUMBER[precision]
    recompute = dict(zip(KEPT, ("none", "selective", "full"), strict=True))[kept]
    total = model.layers * layer_bytes(model, plan, recompute, number)
    total += tokens * (model.hidden * (1 + 2 * number) + 4 * model.vocabulary / tensor)
    again = layer_bytes(model, plan, "selective", number) if recompute == "full" else 0
    return total + again


def held(
    model: Model, ranks: int, shard: int, precision: str, samples: int, kept: str
) -> dict[str, dict[str, float] | str]:
    """{strategy: bytes of one rank by kind, or a sentence on why these ranks can't}.

    shard: the ranks of a row, for HSDP. samples: of one forward, on each rank where they share the
    batch, on all together where they share the model. A pipeline's rank is its first, which holds
    most: activations of as many micro-batches as there are stages (1F1B).
    """
    each, psi = PRECISIONS[precision], model.parameters
    activations = activation_bytes(model, samples, precision, kept)
    rows = {"one device": rank_bytes(psi, 1, 0, each)}
    names = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3 = FSDP")
    rows |= {name: rank_bytes(psi, ranks, stage, each) for stage, name in enumerate(names)}
    rows[f"HSDP, rows of {shard}"] = _hsdp(psi, ranks, shard, each)
    rows = {
        name: row if isinstance(row, str) else {**row, "activations": activations}
        for name, row in rows.items()
    }
    rows["tensor parallel"] = _tensor(model, ranks, precision, samples, kept)
    rows["pipeline, first stage"] = _pipeline(model, ranks, precision, activations)
    return rows


def _hsdp(psi: float, ranks: int, shard: int, each: dict) -> dict | str:
    if ranks % shard:
        return f"{ranks} {'rank makes' if ranks == 1 else 'ranks make'} no rows of {shard}"
    return rank_bytes(psi, shard, 3, each)


def _tensor(model: Model, ranks: int, precision: str, samples: int, kept: str) -> dict | str:
    if model.heads % ranks:
        return f"{model.heads} heads do not divide over {ranks} ranks"
    share = model.counted(ranks) / model.counted()
    state = rank_bytes(share * model.parameters, 1, 0, PRECISIONS[precision])
    return {**state, "activations": activation_bytes(model, samples, precision, kept, ranks)}


def _pipeline(model: Model, ranks: int, precision: str, activations: float) -> dict | str:
    """The embedding and the most layers; in flight are as many micro-batches as stages."""
    if model.layers < ranks:
        return f"{model.layers} layers do not make {ranks} stages"
    deep = ceil(model.layers / ranks)
    share = model.counted(layers=deep) / model.counted()
    state = rank_bytes(share * model.parameters, 1, 0, PRECISIONS[precision])
    return {**state, "activations": activations * deep * ranks / model.layers}
