"""torchrun --standalone --nproc-per-node 2 src/snippets/zero_by_hand.py

ZeRO by hand (Rajbhandari et al., arXiv:1910.02054): a small model on several ranks, which shard
nothing, then the optimizer's state, then the gradients too, then the parameters too. For each stage
rank 0 prints the bytes that it held, the numbers that its collectives carried in a step, and how
far its model is from one that was trained in one process.
"""

import json
from collections import Counter

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

LAYERS, WIDTH, BATCH, STEPS = 8, 96, 48, 3  # the width divides by 2, 3, 4, 6, 8, 12
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # little rounding: what is equal shows as equal
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if WIDTH % world:
    raise SystemExit(f"{world} ranks do not divide the model's width, {WIDTH}")
carried = Counter()


def part(tensor):
    """This rank's part of a tensor: a view, so no memory of its own."""
    return tensor.detach().view(-1).chunk(world)[rank]


def mean(gradient):
    """The mean over the ranks, complete on each of them: an all-reduce."""
    carried["all-reduce"] += gradient.numel()
    dist.all_reduce(gradient)
    return gradient / world


def mean_part(gradient):
    """This rank's part of the mean over the ranks: a reduce-scatter."""
    carried["reduce-scatter"] += gradient.numel()
    mine = torch.empty_like(part(gradient))
    dist.reduce_scatter(mine, list(gradient.view(-1).chunk(world)))
    return mine / world


def gather(weight, mine):
    """The complete weight, from the parts of all ranks: an all-gather."""
    carried["all-gather"] += weight.numel()
    weight.untyped_storage().resize_(weight.numel() * weight.element_size())
    dist.all_gather(list(weight.data.view(-1).chunk(world)), mine)


def free(weight):
    """Give a weight's memory back; its shape and its place in the model stay."""
    weight.untyped_storage().resize_(0)


class Held:
    """The bytes that a rank holds of each kind, now and at most at any look."""

    def __init__(self):
        self.now, self.most = {}, {}

    def look(self, **kinds):
        for kind, tensors in kinds.items():
            storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
            self.now[kind] = sum(storage.nbytes() for storage in storages.values())
            self.most[kind] = max(self.most.get(kind, 0), self.now[kind])


def build():
    torch.manual_seed(0)  # the same weights on every rank
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    return torch.nn.Sequential(*[m for layer in layers for m in (layer, torch.nn.Tanh())])


def batches():
    """Inputs and targets of each step, for all ranks together."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=draw), torch.randn(BATCH, WIDTH, generator=draw)


def train(stage, kind):
    """Train a model, sharded as the stage says: its weights, complete again, and what was held."""
    model, held, parts = build(), Held(), {}
    weights = list(model.parameters())
    for weight in weights:
        parts[weight] = part(weight) if stage > 0 else weight.detach()

    def look(*_):
        gradients = [t.grad for t in (*weights, *parts.values()) if t.grad is not None]
        held.look(parameters=[*weights, *parts.values()], gradients=gradients)

    # ZeRO-1: the optimizer knows this rank's parts, and nothing else
    optimizer = OPTIMIZERS[kind](parts.values(), lr=0.01)

    def shard_gradient(weight):
        look()
        parts[weight].grad = mean_part(weight.grad)
        weight.grad = None
        if stage == 3:
            free(weight)

    # ZeRO-2: a gradient is sharded as soon as the backward pass has it
    if stage >= 2:
        for weight in weights:
            weight.register_post_accumulate_grad_hook(shard_gradient)

    # ZeRO-3: a weight is complete only while its layer computes
    def before(layer, *_):
        gather(layer.weight, parts[layer.weight])
        look()

    def after(layer, *_):
        free(layer.weight)

    if stage == 3:
        for layer in model[::2]:
            parts[layer.weight].set_(parts[layer.weight].clone())  # now memory of its own
            free(layer.weight)
            layer.register_forward_pre_hook(before)
            layer.register_forward_hook(after)
            layer.register_full_backward_pre_hook(before)

    for inputs, targets in batches():
        carried.clear()
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        mse_loss(model(inputs[mine]), targets[mine]).backward()
        look()
        for weight in weights:
            if stage == 0:
                parts[weight].grad, weight.grad = mean(weight.grad), None
            if stage == 1:
                shard_gradient(weight)
        optimizer.step()
        optimizer.zero_grad()
        if stage in (1, 2):
            for weight in weights:
                gather(weight, parts[weight])
    look()
    held.look(optimizer=[t for own in optimizer.state.values() for t in own.values() if t.dim()])
    calls = dict(carried)
    if stage == 3:
        for weight in weights:
            gather(weight, parts[weight])
    return weights, held, calls


def train_alone(kind):
    """The same training in one process, on all samples, nothing sharded."""
    model = build()
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=0.01)
    for inputs, targets in batches():
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return list(model.parameters())


def largest_difference(these, those):
    return max((a - b).abs().max().item() for a, b in zip(these, those, strict=True))


expected = {kind: train_alone(kind) for kind in OPTIMIZERS}
for stage in range(4):
    runs = {kind: train(stage, kind) for kind in OPTIMIZERS}
    weights, held, calls = runs["adamw"]
    row = {"stage": stage, "numbers": sum(w.numel() for w in weights)}
    row |= {"kept": held.now, "most": held.most, "carried": calls}
    row["apart"] = {kind: largest_difference(runs[kind][0], expected[kind]) for kind in OPTIMIZERS}
    if rank == 0:
        print(json.dumps(row))
dist.destroy_process_group()
