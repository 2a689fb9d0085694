"""A GPT whose MLPs are mixtures of experts (GShard, arXiv:2006.16668; Mixtral, arXiv:2401.04088).

A router sends each token to a few of a block's MLPs, the experts; the chosen ones together have the
arithmetic of gpt's MLP. No token is dropped, so the training is the same on any number of ranks.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from bootcamp.costs.model_shapes import MOE, expert_width
from bootcamp.train.models.gpt import Attention, Embedding, Head, initial_std

SIZES = MOE


class Router(nn.Module):
    """(tokens, width) -> weights and numbers of the chosen experts: (tokens, chosen) each.

    The weights are a softmax over the scores of the chosen; one alone would have no gradient.
    `balance` is added to choose, not to weigh (Wang et al., arXiv:2408.15664); here it stays 0.
    `counts`: how often each expert was chosen in the last forward pass.
    """

    def __init__(self, width: int, experts: int, chosen: int):
        super().__init__()
        self.chosen = chosen
        self.scores = nn.Linear(width, experts, bias=False)
        nn.init.normal_(self.scores.weight, std=initial_std(width))
        self.register_buffer("balance", torch.zeros(experts))
        self.counts = torch.zeros(experts, dtype=torch.int64)

    def forward(self, tokens):
        scores = self.scores(tokens)
        chosen = (scores + self.balance).topk(self.chosen).indices
        experts = scores.shape[-1]
        if chosen.is_meta:  # a rehearsal has no numbers: as if all experts were chosen alike
            self.counts = torch.full((experts,), chosen.numel() // experts)
        else:
            self.counts = chosen.flatten().bincount(minlength=experts)
        return scores.gather(-1, chosen).softmax(-1), chosen


class Expert(nn.Module):
    """(rows, width) -> the same shape. A row is a token on its way through one expert."""

    def __init__(self, width: int, inner: int, layers: int):
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        nn.init.normal_(self.up.weight, std=initial_std(width))
        nn.init.normal_(self.down.weight, std=initial_std(width) / (2 * layers) ** 0.5)

    def forward(self, rows):
        return self.down(functional.gelu(self.up(rows)))


class Experts(nn.ModuleList):
    """The experts of a layer: rows (rows, width), counts (experts,) -> results in the same order.

    The rows are sorted by expert; counts says how many each gets. They may come from several ranks:
    then counts has a line for each, (ranks, experts), and the rows are sorted by rank first.
    """

    def keep(self, numbers: range) -> None:
        """Delete all experts but these, without renaming parameters; other ranks have those."""
        for number in sorted(set(range(len(self))) - set(numbers)):
            delattr(self, str(number))
        for parameter in self.parameters():
            parameter.only_here = True  # fingerprint() adds such parameters up over ranks

    def forward(self, rows, counts):
        pieces = list(rows.split(counts.flatten().tolist()))
        for number, expert in enumerate(self):
            mine = slice(number, None, len(self))
            # also an expert without a row computes: its gradient is 0, not None
            results = expert(torch.cat(pieces[mine]))
            pieces[mine] = results.split([len(piece) for piece in pieces[mine]])
        return torch.cat(pieces)


class Block(nn.Module):
    """One transformer block: attention and a mixture of experts, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int, layers: int, experts: int, chosen: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        for matrix in self.attention.parameters():
            nn.init.normal_(matrix, std=initial_std(width))
        nn.init.normal_(self.attention.out.weight, std=initial_std(width) / (2 * layers) ** 0.5)
        self.experts_norm = nn.LayerNorm(width)
        self.router = Router(width, experts, chosen)
        inner = expert_width(width, chosen)
        self.experts = Experts(Expert(width, inner, layers) for _ in range(experts))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mixture(self.experts_norm(x).flatten(0, 1)).view_as(x)

    def mixture(self, tokens):
        """(tokens, width) -> the same shape: the weighted sum of each token's experts' results."""
        weights, chosen = self.router(tokens)
        by_expert = chosen.flatten().argsort(stable=True)
        rows = tokens.unsqueeze(1).expand(-1, self.router.chosen, -1).flatten(0, 1)[by_expert]
        results = self.experts(rows, self.router.counts)
        in_order = results[by_expert.argsort()].view(*chosen.shape, -1)
        return (weights.unsqueeze(-1) * in_order).sum(1)


def list_routers(model: nn.Module) -> list[Router]:
    """List the model's routers in order; empty for other models."""
    return [module for module in model.modules() if isinstance(module, Router)]


def stages(layers: int, width: int, heads: int, context: int, experts: int, chosen: int):
    """Yield (name, constructor) of each stage in order: embedding, the blocks, head."""
    yield "embedding", partial(Embedding, width, context)
    for layer in range(layers):
        yield f"block{layer}", partial(Block, width, heads, layers, experts, chosen)
    yield "head", partial(Head, width)
