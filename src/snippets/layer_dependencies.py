"""torchrun --standalone --nproc-per-node 2 src/snippets/layer_dependencies.py

Models whose layers depend on each other, trained with DDP, FSDP2 and HSDP: each layer a unit, and
then with what the model needs. For each case rank 0 prints how far its parameters end from those of
one process, in distances that these have moved, with both optimizers; or the error that it got.
"""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH, BATCH, STEPS = 32, 16, 16, 3
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # little rounding: what is equal shows as equal
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
if world not in (2, 4, 8):
    raise SystemExit(
        f"two rows of a mesh and equal shares of {BATCH} words: not with {world} ranks"
    )
MESHES = {
    "FSDP2": init_device_mesh("cpu", (world,)),
    "HSDP": init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")),
}


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.low, self.high = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)


class UsedTwice(Layers):
    def forward(self, words):
        x = self.low(self.embedding(words)).tanh()
        return self.head(self.high(self.low(x)).tanh())


class Tied(Layers):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.high(self.low(self.embedding(words)).tanh()))


class Branches(Layers):
    def forward(self, words):
        x = self.embedding(words)
        for branch, mine in ((self.low, words < WORDS // 2), (self.high, words >= WORDS // 2)):
            if mine.any():
                x[mine] = branch(x[mine])
        return self.head(x.tanh())


class Unused(Layers):
    def forward(self, words):
        return self.head(self.low(self.embedding(words)).tanh())


def wrap(model, strategy, together=(), unused=False):
    """Wrap a model; together: the layers of one unit; unused: some rank may not use some layer."""
    if strategy == "DDP":
        return DistributedDataParallel(model, find_unused_parameters=unused)
    if strategy == "HSDP in DDP":
        return DistributedDataParallel(wrap(model, "HSDP"))
    units = [layer for name, layer in model.named_children() if name not in together]
    if together:
        units.append([model.get_submodule(name) for name in together])
    for unit in units:
        fully_shard(unit, mesh=MESHES[strategy])
    fully_shard(model, mesh=MESHES[strategy])
    model.set_reduce_scatter_unused_params(unused)
    return model


def give_memory(model, start, again):
    """Give memory and numbers to a model that was built on the meta device."""
    model.to_empty(device="cpu")
    if again:
        model.head.weight = model.embedding.weight
    set_model_state_dict(model, dict(start), options=StateDictOptions(full_state_dict=True))


def batches():
    """Words and targets of each step; the first half of the batch has the low words."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        words, targets = torch.randint(WORDS, (2, BATCH), generator=draw)
        half = torch.arange(BATCH) // (BATCH // 2) * (WORDS // 2)
        yield words % (WORDS // 2) + half, targets


def train(model, kind, share=slice(None)):
    optimizer = OPTIMIZERS[kind](model.parameters())
    for words, targets in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words[share]), targets[share]).backward()
        optimizer.step()


def numbers(model):
    """All numbers of a model in a row, those of a tied matrix twice."""
    tensors = [getattr(t, "full_tensor", lambda t=t: t)() for t in model.state_dict().values()]
    return torch.cat([tensor.flatten().clone() for tensor in tensors])


def compare(build, strategy, kind, meta=False, again=False, **needs):
    """Train on all ranks and in one process: the distance between both, in distances moved."""
    torch.manual_seed(0)
    alone = build()
    before, start = numbers(alone), {name: t.clone() for name, t in alone.state_dict().items()}
    train(alone, kind)
    torch.manual_seed(0)
    with torch.device("meta" if meta else "cpu"):
        model = build()
    if meta:
        give_memory(model, start, again)
    each = BATCH // world
    train(wrap(model, strategy, **needs), kind, slice(rank * each, (rank + 1) * each))
    return ((numbers(model) - numbers(alone)).norm() / (numbers(alone) - before).norm()).item()


TIED, EITHER = {"together": ("embedding", "head")}, {"together": ("low", "high"), "unused": True}
CASES = {  # how a model is built, what it needs, what is so in any case
    "a layer used twice": (UsedTwice, None, {}),
    "embedding and head tied": (Tied, TIED, {}),
    "a branch for half of the ranks": (Branches, EITHER, {}),
    "a branch for no rank": (Unused, EITHER, {}),
    "tied, built on meta": (Tied, {**TIED, "again": True}, {"meta": True}),
}
cases = [(name, build, {}, so) for name, (build, _, so) in CASES.items()]
cases += [(name, build, needs, so) for name, (build, needs, so) in CASES.items() if needs]
for name, build, needs, so in cases:
    for strategy in ("DDP", *MESHES, *(["HSDP in DDP"] if build is UsedTwice else [])):
        found = {"model": name, "with": list(needs), "strategy": strategy, "error": None}
        found["apart"] = {}
        for kind in OPTIMIZERS:
            try:
                found["apart"][kind] = compare(build, strategy, kind, **needs, **so)
            except (RuntimeError, ValueError) as error:
                found["error"] = str(error)
        if rank == 0:
            print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
