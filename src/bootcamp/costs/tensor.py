"""What tensor parallelism costs a GPT by formula: memory of a rank, collectives of a step.

Everything is in float32: four bytes a number. `tensor` ranks share each matrix, `data` groups of
them share the batch. bootcamp.costs.model_shapes says what of each layer they divide.
"""

from bootcamp.costs.model_shapes import of_shape

NUMBER = 4  # bytes


def parameter_bytes(shape: dict, tensor: int = 1, data: int = 1) -> float:
    """Bytes of one rank: matrices split over the tensor ranks, all sharded over the data groups.

    shape: layers, width, heads and context, as in bootcamp.train.models.gpt.SIZES.
    """
    return NUMBER * sum(layer.parameters(tensor) for layer in of_shape("gpt", shape)) / data


def adamw_bytes(shape: dict, tensor: int = 1, data: int = 1) -> float:
    """AdamW's state of one rank: two numbers for each parameter, a step count for each tensor."""
    tensors = sum(len(layer.shapes) for layer in of_shape("gpt", shape))
    return 2 * parameter_bytes(shape, tensor, data) + NUMBER * tensors


def activation_bytes(
    shape: dict, batch: int, tensor: int = 1, data: int = 1, sequence_parallel: bool = False
) -> float:
    """What the forward keeps for the backward on one rank, the attention matrix not stored.

    The way of Korthikanti et al. (arXiv:2205.05198), for this model: no dropout, and each tensor
    that torch keeps counted once.
    """
    layers = of_shape("gpt", shape)
    return NUMBER * batch / data * sum(x.kept_numbers(tensor, sequence_parallel) for x in layers)


def gathered_bytes(shape: dict, tensor: int = 1) -> float:
    """What FSDP2 keeps gathered from forward to backward: embedding and head, not the blocks."""
    return parameter_bytes({**shape, "layers": 0}, tensor)


def memory(config: dict, shape: dict) -> tuple[float, float, float, float]:
    """Bytes of parameters, gradients, AdamW's state and activations on a rank of a run.

    config: of the run, which says how its ranks stood on a mesh.
    """
    tensor, data = (config["mesh"].get(axis, 1) for axis in ("tensor", "data"))
    sequence, sharded = config.get("sequence_parallel", False), "tensor" in config["mesh"]
    parameters = parameter_bytes(shape, tensor, data)
    activations = activation_bytes(shape, config["global_batch"], tensor, data, sequence)
    if sharded and "data" in config["mesh"]:
        activations += gathered_bytes(shape, tensor)
    return parameters, parameters, adamw_bytes(shape, tensor, data), activations


def collectives(
    shape: dict, batch: int, sequence_parallel: bool = False, apart: bool = False
) -> dict[tuple[str, int], int]:
    """{(kind, bytes): how often in a step with AdamW}, bytes of the whole tensor on one rank.

    apart: query, key and value each send the gradient of their common input.
    """
    layers, tokens = shape["layers"], batch * shape["context"]
    whole, column = NUMBER * tokens * shape["width"], NUMBER * tokens  # s b h, and s b
    counts = {("all-reduce", column): 3}  # the loss: maxima, sums, the targets' scores
    if not sequence_parallel:
        each = 6 if apart else 4
        counts["all-reduce", whole] = each * layers + 1  # backward of the head
        return counts
    counts["all-gather", whole] = 4 * layers + 2  # before the head; backward of the embedding
    counts["reduce-scatter", whole] = 4 * layers + 1  # backward of the head
    norms = 2 * (2 * layers + 1)  # weights and biases: AdamW asks for each gradient three times
    counts["all-reduce", NUMBER * shape["width"]] = 3 * norms
    return counts


def sent_bytes(counts: dict[tuple[str, int], int], ranks: int, halves: dict[str, int]) -> float:
    """What a rank sends for these collectives over a ring.

    halves: by kind, how often each piece goes round: an all-reduce is a reduce-scatter and an
    all-gather, so 2 (Patarasuk and Yuan, JPDC 69, 2009).
    """
    ring = (ranks - 1) / ranks
    return sum(ring * halves[kind] * size * count for (kind, size), count in counts.items())
