"""torchrun --standalone --nproc-per-node 2 src/snippets/experts_by_hand.py

Expert parallelism by hand: one layer of experts, divided over the ranks, beside the complete layer
on each of them. Rows travel to the rank that has their expert, and their results travel back.
"""

import json

import torch
import torch.distributed as dist
from torch.nn.functional import gelu

EXPERTS, WIDTH, TOKENS = 4, 8, 12  # TOKENS of each rank; each goes to one expert

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
each = EXPERTS // world


class AllToAll(torch.autograd.Function):
    """out[k] rows go to rank k, back[k] rows come from it. Gradients go the other way."""

    @staticmethod
    def forward(ctx, rows, out, back):
        ctx.splits = out, back
        arriving = rows.new_empty(sum(back), rows.shape[1])
        dist.all_to_all_single(arriving, rows, back, out)
        return arriving

    @staticmethod
    def backward(ctx, gradients):
        out, back = ctx.splits
        return AllToAll.apply(gradients, back, out), None, None


def mixture(tokens, chosen, experts, exchange):
    """Each token through its expert. exchange: brings rows to their experts, and back."""
    by_expert = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=EXPERTS)
    results = exchange(tokens[by_expert], counts, experts)
    return results[by_expert.argsort()]


def stay(rows, counts, experts):
    """All experts are here."""
    pieces = rows.split(counts.tolist())
    return torch.cat([gelu(p @ weight) for p, weight in zip(pieces, experts, strict=True)])


def travel(rows, counts, experts):
    """Rank k has the experts k * each, ..., and gets the rows of all ranks for them."""
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)  # how many rows come from each rank for each expert
    out, back = (c.view(world, each).sum(1).tolist() for c in (counts, arriving))
    rows = AllToAll.apply(rows, out, back)  # sorted by rank, then by expert
    pieces = list(rows.split(arriving.tolist()))
    for number, weight in enumerate(experts):
        mine = slice(number, None, each)
        lengths = [len(piece) for piece in pieces[mine]]
        pieces[mine] = gelu(torch.cat(pieces[mine]) @ weight).split(lengths)
    return AllToAll.apply(torch.cat(pieces), back, out)


torch.manual_seed(0)  # the same numbers on every rank
weights = torch.randn(EXPERTS, WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
tokens = torch.randn(world, TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
chosen = torch.randint(EXPERTS, (world, TOKENS))
whole = mixture(tokens.flatten(0, 1), chosen.flatten(), weights.unbind(), stay)
whole.square().sum().backward()

own = tokens.detach()[rank].requires_grad_()
mine = weights.detach()[rank * each : (rank + 1) * each].clone().requires_grad_()
split = mixture(own, chosen[rank], mine.unbind(), travel)
split.square().sum().backward()


def largest_difference(a, b):
    return (a - b).abs().max().item()


row = {"rank": rank, "rows here": len(chosen[chosen // each == rank])}
row["output apart"] = largest_difference(whole.view(world, TOKENS, WIDTH)[rank], split)
row["tokens' gradients apart"] = largest_difference(tokens.grad[rank], own.grad)
expected = weights.grad[rank * each : (rank + 1) * each]
row["experts' gradients apart"] = largest_difference(expected, mine.grad)
print(json.dumps(row))
dist.destroy_process_group()
