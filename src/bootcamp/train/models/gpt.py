"""GPT over bytes: pre-LN blocks, as in GPT-2 (Radford et al., 2019), with a 256-byte vocabulary.

Two things differ from GPT-2 on purpose. Attention has no biases: a key bias has a gradient of zero
in exact arithmetic (softmax ignores it), so Adam would blow up its rounding noise and spoil every
proof of equality. Embedding and head are not tied, so that the model is a plain sequence of stages.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from bootcamp.costs.model_shapes import GPT, VOCABULARY

SIZES = GPT


def initial_std(width: int) -> float:
    """Return the initial weights' spread: GPT-2's 0.02 at its width of 768, scaled to others."""
    return 0.02 * (768 / width) ** 0.5


class Embedding(nn.Module):
    """(batch, context) int64 -> (batch, context, width): the byte's vector plus its position's."""

    def __init__(self, width: int, context: int):
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        nn.init.normal_(self.byte.weight, std=initial_std(width))
        nn.init.normal_(self.position.weight, std=initial_std(width))

    def forward(self, inputs):
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        return self.byte(inputs) + self.position(positions)


class Attention(nn.Module):
    """Causal self-attention, (batch, context, width) -> the same shape.

    kv_heads: heads of keys and values, each shared by heads // kv_heads query heads: grouped-query
    attention (Ainslie et al., 2023, arXiv:2305.13245). `attend` may be replaced.
    """

    attend = staticmethod(partial(functional.scaled_dot_product_attention, is_causal=True))

    def __init__(self, width: int, heads: int, kv_heads: int | None = None):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // heads * self.kv_heads, bias=False)
        self.value = nn.Linear(width, width // heads * self.kv_heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        # -1 rather than self.heads below: a tensor-parallel rank holds a part of the heads
        width_of_head = x.shape[-1] // self.heads
        query, key, value = (
            projection(x).unflatten(-1, (-1, width_of_head)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = self.attend(query, key, value, enable_gqa=self.kv_heads < self.heads)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One transformer block: attention and a two-layer MLP, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int, layers: int, kv_heads: int | None = None):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        for linear in (m for m in self.modules() if isinstance(m, nn.Linear)):
            nn.init.normal_(linear.weight, std=initial_std(width))
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        # the residual stream adds up 2 * layers branches: keep its variance (GPT-2, section 2.3)
        for branch in (self.attention.out, self.down):
            nn.init.normal_(branch.weight, std=initial_std(width) / (2 * layers) ** 0.5)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Head(nn.Module):
    """(batch, context, width) -> (batch, context, 256): a score for each possible next byte."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.scores.weight, std=initial_std(width))

    def forward(self, x):
        return self.scores(self.norm(x))


def stages(layers: int, width: int, heads: int, context: int, kv_heads: int | None = None):
    """Yield (name, constructor) of each stage in order: embedding, the blocks, head."""
    yield "embedding", partial(Embedding, width, context)
    for layer in range(layers):
        yield f"block{layer}", partial(Block, width, heads, layers, kv_heads)
    yield "head", partial(Head, width)
