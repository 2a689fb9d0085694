"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_compile.py

torch.compile and DDP in three orders, and a model whose forward is torch's own. Prints how many
graphs the compiler got, and the first name in the state dict.
"""

import json
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.nn.parallel import DistributedDataParallel


class Layers(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs)


def compile_in_place(model, **how):
    model.compile(**how)
    return DistributedDataParallel(model, bucket_cap_mb=2)


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=2)


ORDERS = {
    "torch.compile(DDP(model))": lambda model, **how: torch.compile(wrap(model), **how),
    "DDP(torch.compile(model))": lambda model, **how: wrap(torch.compile(model, **how)),
    "model.compile(), then DDP(model)": compile_in_place,
}
torch.set_num_threads(1)
logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
dist.init_process_group("gloo")
TRIED = [(Layers, order) for order in ORDERS]
TRIED += [(nn.Sequential, order) for order in list(ORDERS)[1::-1]]
for kind, order in TRIED:
    torch._dynamo.reset()
    graphs = []

    def count_graph(graph, inputs, graphs=graphs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    layers = kind(*(nn.Linear(512, 512) for _ in range(4)))  # 1 MiB each: a bucket takes two
    model = ORDERS[order](layers, backend=count_graph)
    model(torch.ones(2, 512)).sum().backward()
    name = next(iter(model.state_dict()))
    if dist.get_rank() == 0:
        said = {"forward": "own" if kind is Layers else "torch's", "order": order}
        print(json.dumps(said | {"graphs": len(graphs), "first name": name}))
dist.destroy_process_group()
