"""The plainest GPT-2 and the plainest loop around it: the yardstick of the part `mfu`.

GPT-2 as published (Radford et al., 2019), with biases, one matrix for query, key and value, and a
head that shares the embedding's table. The loop is what one writes first: autocast to bfloat16,
torch.compile, AdamW as torch has it, a batch from ordinary memory, the loss printed in every step.
"""

import torch
from torch import nn
from torch.nn import functional

from bootcamp.costs.model_shapes import GPT2_VOCABULARY
from gpu_parts.device import Device


class Block(nn.Module):
    """(batch, context, width) -> the same shape."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.attention(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT2(nn.Module):
    """(batch, context) int64 -> the mean loss of predicting each next token."""

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        scores = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class PlainLoop:
    """The loop, one `step()` at a time. batch: samples of a step."""

    def __init__(self, device: Device, shape: dict, batch: int, vocabulary: int = GPT2_VOCABULARY):
        torch.manual_seed(0)
        self.device = device
        with torch.device(device.kind):
            self.model = GPT2(**shape, vocabulary=vocabulary)
        self.compiled = device.compile(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.ids = torch.randint(vocabulary, (batch, shape["context"] + 1))

    def step(self) -> float:
        """The loss of one step."""
        inputs, targets = (
            part.to(self.device.kind) for part in (self.ids[:, :-1], self.ids[:, 1:])
        )
        with torch.autocast(self.device.kind, dtype=torch.bfloat16):
            loss = self.compiled(inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
