"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_outputs.py

What a module returns, and which of DDP's options look into it. Prints for each whether the ranks
still have the same gradients.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Data:
    """A result that only `find_unused_parameters` looks into."""

    values: Any


class Own:
    """A result that neither option looks into."""

    def __init__(self, values):
        self.values = values


KINDS = {  # how a kind of output is made, and how the tensor is read from it
    "tuple": (lambda y: (y, "words"), lambda out: out[0]),
    "dict": (lambda y: {"y": y}, lambda out: out["y"]),
    "dataclass": (Data, lambda out: out.values),
    "plain object": (Own, lambda out: out.values),
}


class Layers(nn.Sequential):
    def forward(self, inputs):
        return self.wrap(super().forward(inputs))


dist.init_process_group("gloo")
rank = dist.get_rank()
for kind, (wrap, read) in KINDS.items():
    for option in ("", "find_unused_parameters", "static_graph"):
        torch.manual_seed(0)
        layers = Layers(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        layers.wrap = wrap
        model = DistributedDataParallel(layers, **({option: True} if option else {}))
        try:
            for step in range(3):
                model.zero_grad()
                read(model(torch.full((1, 4), step + rank + 1.0))).sum().backward()
            mine = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            mean = mine / dist.get_world_size()
            dist.all_reduce(mean)
            answer = "averaged" if torch.allclose(mine, mean) else "each rank has its own"
        except RuntimeError as error:
            answer = f"RuntimeError: {str(error).partition('.')[0]}"
        if rank == 0:
            print(json.dumps({"returns": kind, "option": option or "none", "gradients": answer}))
dist.destroy_process_group()
