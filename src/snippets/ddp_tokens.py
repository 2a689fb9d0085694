"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_tokens.py

Sentences of unequal length: each rank has another number of tokens. Prints as JSON how far DDP's
gradient is from that of one process: with each rank's mean, and with a mean over all ranks' tokens.
"""

import copy
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

PADDING = -100  # a target that counts for nothing, as cross_entropy has it by default
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)).double()
inputs, targets = torch.randint(256, (2, 8, 64))
for sentence, length in enumerate((64, 60, 56, 52, 16, 12, 8, 4)):
    targets[sentence, length:] = PADDING


def gradients(model, inputs, targets, divisor):
    losses = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    (losses / divisor).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


exact = gradients(copy.deepcopy(model), inputs, targets, (targets != PADDING).sum())
inputs, targets = inputs.chunk(world)[rank], targets.chunk(world)[rank]
own = (targets != PADDING).sum()
tokens = own.clone()
dist.all_reduce(tokens)
for name, divisor in {"own tokens": own, "all tokens / ranks": tokens / world}.items():
    found = gradients(DistributedDataParallel(copy.deepcopy(model)), inputs, targets, divisor)
    off = ((found - exact).norm() / exact.norm()).item()
    row = {"rank": rank, "tokens": own.item(), "divided by": name}
    print(json.dumps(row | {"gradient off": off}))
dist.destroy_process_group()
