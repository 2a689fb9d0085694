"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_outputs.py

What a module returns, and which of DDP's options look into it. Prints for each whether the ranks
still have the same gradients.
"""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Own:
    """A result that DDP can't look into: neither tuple, list, dictionary nor dataclass."""

    def __init__(self, values):
        self.values = values


RETURNS = {"tuple": lambda y: (y, "words"), "dict": lambda y: {"y": y}, "own class": Own}
READ = {"tuple": lambda out: out[0], "dict": lambda out: out["y"], "own class": lambda o: o.values}


class Layers(nn.Sequential):
    def forward(self, inputs):
        return RETURNS[self.kind](super().forward(inputs))


dist.init_process_group("gloo")
rank = dist.get_rank()
for kind in RETURNS:
    for option in ("", "find_unused_parameters", "static_graph"):
        torch.manual_seed(0)
        layers = Layers(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        layers.kind = kind
        model = DistributedDataParallel(layers, **({option: True} if option else {}))
        try:
            for step in range(3):
                model.zero_grad()
                READ[kind](model(torch.full((1, 4), step + rank + 1.0))).sum().backward()
            mine = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            mean = mine / dist.get_world_size()
            dist.all_reduce(mean)
            answer = "averaged" if torch.allclose(mine, mean) else "each rank has its own"
        except RuntimeError as error:
            answer = f"RuntimeError: {str(error).partition('.')[0]}"
        if rank == 0:
            print(json.dumps({"returns": kind, "option": option or "none", "gradients": answer}))
dist.destroy_process_group()
