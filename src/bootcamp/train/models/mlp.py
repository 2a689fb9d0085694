"""A toy MLP that predicts the next byte from a few before it (Bengio et al., JMLR 3, 2003)."""

from functools import partial

from torch import nn

VOCABULARY = 256
SIZES = {
    "tiny": {"layers": 4, "width": 128, "context": 16},
    "small": {"layers": 4, "width": 1024, "context": 16},
    "medium": {"layers": 8, "width": 2048, "context": 16},
    "large": {"layers": 8, "width": 4096, "context": 16},
    "xl": {"layers": 16, "width": 8192, "context": 16},
}
EMBEDDING_WIDTH = 16


class Embedding(nn.Sequential):
    """(batch, context) int64 -> (batch, context * 16): the bytes' vectors side by side."""

    def __init__(self):
        super().__init__(nn.Embedding(VOCABULARY, EMBEDDING_WIDTH), nn.Flatten())


class Hidden(nn.Sequential):
    """(batch, inputs) -> (batch, width), rectified."""

    def __init__(self, inputs: int, width: int):
        super().__init__(nn.Linear(inputs, width), nn.ReLU())


def stages(layers: int, width: int, context: int):
    """(name, constructor) of each stage in order: embedding, hidden layers, head."""
    yield "embedding", Embedding
    yield "hidden0", partial(Hidden, context * EMBEDDING_WIDTH, width)
    for layer in range(1, layers):
        yield f"hidden{layer}", partial(Hidden, width, width)
    yield "head", partial(nn.Linear, width, VOCABULARY)


def data_format(layers: int, width: int, context: int) -> dict:
    """Windows of `context` bytes, one target: the byte after the window."""
    return {"context": context, "next_byte_only": True}


def forward_flops(layers: int, width: int, context: int) -> int:
    """Two per weight of each linear layer."""
    weights = context * EMBEDDING_WIDTH * width + (layers - 1) * width**2 + width * VOCABULARY
    return 2 * weights
