"""A toy MLP that predicts the next byte from a few before it (Bengio et al., JMLR 3, 2003)."""

from functools import partial

from torch import nn

from bootcamp.costs.model_shapes import EMBEDDING_WIDTH, MLP, VOCABULARY

SIZES = MLP


class Embedding(nn.Sequential):
    """(batch, context) int64 -> (batch, context * 16): the bytes' vectors side by side."""

    def __init__(self):
        super().__init__(nn.Embedding(VOCABULARY, EMBEDDING_WIDTH), nn.Flatten())


class Hidden(nn.Sequential):
    """(batch, inputs) -> (batch, width), rectified."""

    def __init__(self, inputs: int, width: int):
        super().__init__(nn.Linear(inputs, width), nn.ReLU())


def stages(layers: int, width: int, context: int):
    """Yield (name, constructor) of each stage in order: embedding, hidden layers, head."""
    yield "embedding", Embedding
    yield "hidden0", partial(Hidden, context * EMBEDDING_WIDTH, width)
    for layer in range(1, layers):
        yield f"hidden{layer}", partial(Hidden, width, width)
    yield "head", partial(nn.Linear, width, VOCABULARY)
