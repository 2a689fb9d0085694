"""torchrun --standalone --nproc-per-node 2 src/snippets/tensor_by_hand.py

Tensor parallelism by hand: each rank multiplies with its part of the matrices of a block's two
halves. The two functions f and g are those of Megatron-LM (Shoeybi et al., arXiv:1909.08053).
"""

import json

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, scaled_dot_product_attention

HEADS, WIDTH = 4, 16

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
calls = {"forward": 0, "backward": 0}


def sum_over_ranks(tensor, when):
    """The sum over the ranks, the same on all of them."""
    calls[when] += 1
    total = tensor.clone()
    dist.all_reduce(total)
    return total


class Enter(torch.autograd.Function):
    """f: where the split part begins. Nothing forward; the gradients of all ranks' parts add up."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return sum_over_ranks(gradient, "backward")


class Leave(torch.autograd.Function):
    """g: where the split part ends. The ranks' parts of the sum are added; nothing backward."""

    @staticmethod
    def forward(ctx, partial_sum):
        return sum_over_ranks(partial_sum, "forward")

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def mlp(x, up, down):
    """Columns first, then rows: nothing is sent in the middle."""
    return gelu(x @ up) @ down


def attention(x, query, key, value, out):
    """Each rank has some of the heads, with all that belongs to them."""
    heads = query.shape[1] * HEADS // WIDTH
    q, k, v = (
        (x @ weight).unflatten(-1, (heads, -1)).transpose(1, 2) for weight in (query, key, value)
    )
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(2) @ out


def columns(weight):
    return weight.chunk(world, dim=1)[rank].clone().requires_grad_()


def rows(weight):
    return weight.chunk(world, dim=0)[rank].clone().requires_grad_()


def largest_difference(a, b):
    return (a - b).abs().max().item()


torch.manual_seed(0)  # the same numbers on every rank
draw = {"dtype": torch.float64}
for name, function, shapes in (
    ("mlp", mlp, [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]),
    ("attention", attention, [(WIDTH, WIDTH)] * 4),
):
    weights = [torch.randn(shape, **draw, requires_grad=True) for shape in shapes]
    mine = [*map(columns, (w.detach() for w in weights[:-1])), rows(weights[-1].detach())]
    x = torch.randn(2, 8, WIDTH, **draw, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    calls.update(forward=0, backward=0)

    whole = function(x, *weights)
    split = Leave.apply(function(Enter.apply(again), *mine))
    whole.square().mean().backward()
    split.square().mean().backward()

    cut = [columns(w.grad) for w in weights[:-1]] + [rows(weights[-1].grad)]
    row = {"part": name, "output apart": largest_difference(whole, split)}
    row["input's gradient apart"] = largest_difference(x.grad, again.grad)
    differences = [largest_difference(a, w.grad) for a, w in zip(cut, mine, strict=True)]
    row["weights' gradients apart"] = max(differences)
    if rank == 0:
        print(json.dumps({**row, **{f"all-reduces, {when}": n for when, n in calls.items()}}))
dist.destroy_process_group()
