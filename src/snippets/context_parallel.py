"""torchrun --standalone --nproc-per-node 2 src/snippets/context_parallel.py --way ring

Context parallelism by hand: each rank has a part of the text. Causal attention over all of it,
forward and backward, in one of three ways: keys and values go round a ring, block by block with a
running softmax (Ring Attention, Liu et al., arXiv:2310.01889); they are all-gathered (Llama 3,
arXiv:2407.21783); or an all-to-all gives each rank the complete text of some heads (DeepSpeed
Ulysses, arXiv:2309.14509). Each rank prints how far it is from plain attention, and what it sent.
Several ways, or numbers of key heads, with commas between them, are tried one after another.
"""

import argparse
import functools
import itertools
import json

import torch
import torch.distributed as dist

from bootcamp.train.sent_bytes import count_sent_bytes

parser = argparse.ArgumentParser()
parser.add_argument("--way", default="ring", help="ring, all-gather, ulysses")
parser.add_argument("--order", choices=("straight", "zigzag"), default="straight")
parser.add_argument("--text", type=int, default=256, help="tokens, a multiple of 2 x ranks")
parser.add_argument("--heads", type=int, default=4, help="of queries")
parser.add_argument("--key-heads", default="4", help="of keys and values")
parser.add_argument("--width", type=int, default=16, help="of a head")
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
cases = list(itertools.product(args.way.split(","), map(int, args.key_heads.split(","))))
for way, key_heads in cases:
    if way == "ulysses" and key_heads % world:
        parser.error(f"{key_heads} heads of keys do not divide over {world} ranks")
log = {"largest_scores": 0}


def list_places(of_rank):
    """The tokens that a rank has, in pieces that are whole or not at all seen by another piece."""
    pieces = torch.arange(args.text).chunk(2 * world)
    if args.order == "straight":
        return [torch.cat(pieces[2 * of_rank : 2 * of_rank + 2])]
    return [pieces[of_rank], pieces[2 * world - 1 - of_rank]]


def scores(q, k, seen):
    log["largest_scores"] = max(log["largest_scores"], seen.numel())
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))


def attention(q, k, v, q_places, k_places):
    """Plain attention, where every token knows its place in the text."""
    return scores(q, k, q_places[:, None] >= k_places[None, :]).softmax(-1) @ v


def pass_on(*tensors):
    """Send these to the next rank; what the rank before has sent."""
    if world == 1:
        return tensors
    out, incoming = torch.stack(tensors), torch.empty_like(torch.stack(tensors))
    sending = dist.isend(out, (rank + 1) % world)
    dist.recv(incoming, (rank - 1) % world)
    sending.wait()
    return incoming.unbind()


def list_pairs(step):
    """(rows of my queries, rows of the keys held now, which may be seen) of each pair of pieces."""
    owner = (rank - step) % world
    q_start = 0
    for mine in list_places(rank):
        k_start = 0
        for held in list_places(owner):
            if mine[-1] >= held[0]:  # else every key lies after every query: skip the pair
                q_rows = slice(q_start, q_start + len(mine))
                k_rows = slice(k_start, k_start + len(held))
                seen = mine[:, None] >= held[None, :]
                yield (..., q_rows, slice(None)), (..., k_rows, slice(None)), seen
            k_start += len(held)
        q_start += len(mine)


class RingAttention(torch.autograd.Function):
    """q, k, v: this rank's tokens -> the attention's output for them."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.own = q, k, v
        out = torch.zeros_like(q)
        log_sum = torch.full_like(q[..., :1], float("-inf"))  # log of the softmax's sum so far
        for step in range(world):
            computed = 0
            for qs, ks, seen in list_pairs(step):
                s = scores(q[qs], k[ks], seen)
                new = torch.logaddexp(log_sum[qs], s.logsumexp(-1, keepdim=True))
                out[qs] = out[qs] * (log_sum[qs] - new).exp() + (s - new).exp() @ v[ks]
                log_sum[qs] = new
                computed += seen.numel()
            log["held"].append((rank - step) % world)
            log["computed"].append(computed)
            if step < world - 1:
                k, v = pass_on(k, v)
        ctx.save_for_backward(out, log_sum)
        return out

    @staticmethod
    def backward(ctx, d_out):
        (q, k, v), (out, log_sum) = ctx.own, ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
        drawn = (d_out * out).sum(-1, keepdim=True)
        for step in range(world):
            for qs, ks, seen in list_pairs(step):
                p = (scores(q[qs], k[ks], seen) - log_sum[qs]).exp()  # the softmax, once more
                ds = p * (d_out[qs] @ v[ks].mT - drawn[qs]) / q.shape[-1] ** 0.5
                dq[qs] += ds @ k[ks]
                dk[ks] += (ds.mT @ q[qs]).sum(1, keepdim=True)  # over the queries' heads
                dv[ks] += (p.mT @ d_out[qs]).sum(1, keepdim=True)
            if step < world - 1:
                k, v = pass_on(k, v)
            dk, dv = pass_on(dk, dv)  # gradients travel with their keys, and come home
        return dq, dk, dv


class AllGather(torch.autograd.Function):
    """A rank's part -> (ranks, the part); backward: a reduce-scatter."""

    @staticmethod
    def forward(ctx, part):
        parts = part.new_empty(world, *part.shape)
        dist.all_gather(list(parts), part.contiguous())
        return parts

    @staticmethod
    def backward(ctx, d_parts):
        own = torch.empty_like(d_parts[0])
        dist.reduce_scatter(own, list(d_parts.contiguous()))
        return own


class AllToAll(torch.autograd.Function):
    """(ranks, what each of them gets) -> (ranks, what each has sent); backward: the way back."""

    @staticmethod
    def forward(ctx, parts):
        given = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(given, parts.contiguous())
        return given

    backward = forward


def join_ranks(parts):
    """(ranks, ..., tokens of a rank, width) -> (..., all tokens, width)."""
    return torch.cat(parts.unbind(), dim=-2)


def attend_to_gathered(q, k, v):
    k, v = (join_ranks(AllGather.apply(t)) for t in (k, v))
    return attention(q, k, v, mine, everything)


def ulysses(q, k, v):
    q, k, v = (join_ranks(AllToAll.apply(t.unflatten(0, (world, -1)))) for t in (q, k, v))
    out = attention(q, k, v, everything, everything)  # of this rank's heads
    return AllToAll.apply(torch.stack(out.chunk(world, dim=-2))).flatten(0, 1)


WAYS = {"ring": RingAttention.apply, "all-gather": attend_to_gathered, "ulysses": ulysses}
mine = torch.cat(list_places(rank))
everything = torch.cat([place for other in range(world) for place in list_places(other)])


def largest_difference(a, b):
    return (a - b).abs().max().item()


@functools.cache
def attend_alone(key_heads):
    """Plain attention: what goes in, with its gradients, the output, and the loss's weights."""
    torch.manual_seed(0)  # every rank draws the whole text, and keeps its part
    groups = args.heads // key_heads  # heads of queries that share keys and values
    shape = (key_heads, groups, args.text, args.width)
    keys = (key_heads, 1, args.text, args.width)
    whole = [torch.randn(*each, requires_grad=True) for each in (shape, keys, keys)]
    weights, everywhere = torch.randn(shape), torch.arange(args.text)
    plain = attention(*whole, everywhere, everywhere)
    (plain * weights).sum().backward()
    return whole, plain.detach(), weights


def compare(way, key_heads):
    """What a rank holds, computes and sends, and how far it is from plain attention."""
    whole, plain, weights = attend_alone(key_heads)
    for _ in range(2):  # the first time connections are made
        log.update(held=[], computed=[], largest_scores=0)
        part = [tensor.detach()[..., mine, :].requires_grad_() for tensor in whole]
        counts = [count_sent_bytes().get("all", 0)]
        result = WAYS[way](*part)
        counts.append(count_sent_bytes().get("all", 0))
        (result * weights[..., mine, :]).sum().backward()
        counts.append(count_sent_bytes().get("all", 0))
        dist.barrier()
    found = {"way": way, "key_heads": key_heads, **log}
    found |= {"forward_bytes": counts[1] - counts[0], "backward_bytes": counts[2] - counts[1]}
    found["output_apart"] = largest_difference(result, plain[..., mine, :])
    grads = [(a.grad, b.grad[..., mine, :]) for a, b in zip(part, whole, strict=True)]
    return found | {"gradients_apart": max(largest_difference(*pair) for pair in grads)}


for case in cases:
    print(json.dumps({"rank": rank, "tokens": mine.tolist(), **compare(*case)}))
dist.destroy_process_group()
