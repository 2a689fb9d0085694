"""torchrun --standalone --nproc-per-node 2 src/snippets/lora_sharded.py

Trains the tiny GPT whole, and then frozen with low-rank adapters beside queries and values (LoRA:
Hu et al., 2021, arXiv:2106.09685), with DDP and FSDP2, right and with two mistakes. For each case
the last rank prints what it holds and sends, and how far what was trained ends from one process and
from rank 0, in distances that it has moved: with SGD or AdamW, whichever is further.
"""

import argparse
import json
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import data, models
from bootcamp.train.sent_bytes import count_sent_bytes

RANK_OF_UPDATE, BATCH, STEPS = 16, 8, 2
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
SIZE = {"model": "gpt", "size": "tiny", "dtype": "float64"}  # what is equal shows as equal
TEXT = data.Corpus(context=64)
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-6),
}


class Adapted(nn.Module):
    """A frozen linear layer and a trained update of low rank, which begins as zero."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK_OF_UPDATE, bias=False, dtype=torch.float64)
        self.up = nn.Linear(RANK_OF_UPDATE, base.out_features, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapt(model):
    """Freeze a model, and put adapters beside the queries and values of its blocks."""
    torch.manual_seed(0)
    model.requires_grad_(False)
    for block in [stage for name, stage in model.named_children() if name.startswith("block")]:
        block.attention.query = Adapted(block.attention.query)
        block.attention.value = Adapted(block.attention.value)


def wrap(model, strategy):
    if strategy == "DDP":
        return DistributedDataParallel(model)
    for stage in model:
        fully_shard(stage, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def build(strategy, lora, mistake=None):
    """The model, and what its ranks call."""
    drawn = argparse.Namespace(**SIZE, seed=rank if mistake == "base drawn by each rank" else 0)
    model = models.build(drawn)
    late = mistake == "adapters after wrapping"
    if lora and not late:
        adapt(model)
    wrapped = wrap(model, strategy) if strategy else model
    if late:
        adapt(model)
    return model, wrapped


def list_trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def flatten(model):
    """What is trained, in a row."""
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in list_trained(model)]
    return torch.cat([p.detach().flatten().clone() for p in whole])


def count_bytes(tensors):
    """Bytes that this rank has of them."""
    return sum(getattr(t, "to_local", lambda t=t: t)().nbytes for t in tensors if t.dim())


def train(kind, strategy, lora, mistake=None):
    """Train on shares of the batches, without a strategy on all: (start, end, what a rank has)."""
    model, wrapped = build(strategy, lora, mistake)
    start, optimizer = flatten(model), OPTIMIZERS[kind](list_trained(model))
    share = torch.arange(rank, BATCH, world) if strategy else torch.arange(BATCH)
    for step in range(STEPS):
        before = count_sent_bytes().get("all")
        inputs, targets = TEXT.batch(share + step * BATCH)
        optimizer.zero_grad()
        models.loss(wrapped(inputs), targets).backward()
        optimizer.step()
    sent = before and count_sent_bytes()["all"] - before
    state = (tensor for held in optimizer.state.values() for tensor in held.values())
    has = {"trained, %": 100 * len(start) / sum(p.numel() for p in model.parameters())}
    has["parameters, MB"] = count_bytes(model.parameters()) / 1e6
    has["gradients, MB"] = count_bytes(p.grad for p in list_trained(model)) / 1e6
    has["optimizer, MB"] = count_bytes(state) / 1e6
    return start, flatten(model), has | {"sent kB, counted": sent and sent / 1e3}


@cache
def train_alone(kind, lora):
    return train(kind, None, lora)[:2]


for mistake in (None, "adapters after wrapping", "base drawn by each rank"):
    for strategy in ("DDP", "FSDP2"):
        for lora in (True, False) if mistake is None else (True,):
            apart = {"from one process": 0, "from rank 0": 0}
            for kind in OPTIMIZERS if lora else ("adamw",):
                _, end, has = train(kind, strategy, lora, mistake)
                dist.broadcast(of_rank_0 := end.clone(), 0)
                if rank < world - 1:
                    continue
                start, right = train_alone(kind, lora)
                for what, other in zip(apart, (right, of_rank_0), strict=True):
                    far = ((end - other).norm() / (right - start).norm()).item()
                    apart[what] = max(apart[what], far)
            mistaken = {"mistake": mistake, "strategy": strategy, **apart}
            run = {"run": strategy + lora * ", LoRA", **apart, **has}
            if rank == world - 1:
                print(json.dumps(mistaken if mistake else run))
dist.barrier()
dist.destroy_process_group()
