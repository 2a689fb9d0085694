"""torchrun --standalone --nproc-per-node 2 src/snippets/ring_attention.py --order zigzag

Context parallelism by hand: each rank has a part of the text, keys and values go round a ring.
Attention block by block with a running softmax, as in Ring Attention (Liu et al.,
arXiv:2310.01889), causal, forward and backward. Each rank prints how far it is from plain
attention.
"""

import argparse
import json

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--order", choices=("straight", "zigzag"), default="straight")
parser.add_argument("--text", type=int, default=256, help="tokens, a multiple of 2 x ranks")
parser.add_argument("--width", type=int, default=16)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
log = {"held": [], "computed": [], "largest_scores": 0}


def places(of_rank):
    """The tokens that a rank has, in pieces that are whole or not at all seen by another piece."""
    pieces = torch.arange(args.text).chunk(2 * world)
    if args.order == "straight":
        return [torch.cat(pieces[2 * of_rank : 2 * of_rank + 2])]
    return [pieces[of_rank], pieces[2 * world - 1 - of_rank]]


def pass_on(*tensors):
    """Send these to the next rank; what the rank before has sent."""
    if world == 1:
        return tensors
    out, incoming = torch.stack(tensors), torch.empty_like(torch.stack(tensors))
    sending = dist.isend(out, (rank + 1) % world)
    dist.recv(incoming, (rank - 1) % world)
    sending.wait()
    return incoming.unbind()


def pairs(step):
    """(rows of my queries, rows of the keys held now, which may be seen) of each pair of pieces."""
    owner = (rank - step) % world
    q_start = 0
    for mine in places(rank):
        k_start = 0
        for held in places(owner):
            if mine[-1] >= held[0]:  # else every key lies after every query: skip the pair
                q_rows = slice(q_start, q_start + len(mine))
                k_rows = slice(k_start, k_start + len(held))
                yield q_rows, k_rows, mine[:, None] >= held[None, :]
            k_start += len(held)
        q_start += len(mine)


def scores(q, k, seen):
    log["largest_scores"] = max(log["largest_scores"], seen.numel())
    return (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))


class RingAttention(torch.autograd.Function):
    """q, k, v: this rank's tokens x width -> the attention's output for them."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.own = q, k, v
        out = torch.zeros_like(q)
        log_sum = torch.full_like(q[:, :1], float("-inf"))  # log of the softmax's sum so far
        for step in range(world):
            computed = 0
            for qs, ks, seen in pairs(step):
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
            for qs, ks, seen in pairs(step):
                p = (scores(q[qs], k[ks], seen) - log_sum[qs]).exp()  # the softmax, once more
                ds = p * (d_out[qs] @ v[ks].T - drawn[qs]) / q.shape[-1] ** 0.5
                dq[qs] += ds @ k[ks]
                dk[ks] += ds.T @ q[qs]
                dv[ks] += p.T @ d_out[qs]
            k, v, dk, dv = pass_on(k, v, dk, dv)  # gradients travel with their keys, and come home
        return dq, dk, dv


torch.manual_seed(0)  # every rank draws the whole text, and keeps its part
whole = [torch.randn(args.text, args.width, requires_grad=True) for _ in range(3)]
weights = torch.randn(args.text, args.width)
mine = torch.cat(places(rank))
part = [tensor.detach()[mine].requires_grad_() for tensor in whole]

result = RingAttention.apply(*part)
(result * weights[mine]).sum().backward()

plain = torch.nn.functional.scaled_dot_product_attention(
    *(t[None, None] for t in whole), is_causal=True
)[0, 0]
(plain * weights).sum().backward()


def apart(a, b):
    return (a - b).abs().max().item()


log["output_apart"] = apart(result, plain[mine])
grads = [apart(a.grad, b.grad[mine]) for a, b in zip(part, whole, strict=True)]
log["gradients_apart"] = max(grads)
print(json.dumps({"rank": rank, "tokens": mine.tolist(), **log}))
dist.destroy_process_group()
