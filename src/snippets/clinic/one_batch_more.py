"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/one_batch_more.py

The samples are dealt out by hand, one by one, and trained in batches of four. "It ran for a year.
Last week we got one more sample, and now it stands still at the end of the first epoch."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(33, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mine = list(range(len(inputs)))[rank::world]
seen = []
for epoch in range(2):
    seen.append([])
    for first in range(0, len(mine), 4):
        batch = mine[first : first + 4]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        seen[epoch] += batch
    dist.barrier()
    print(f"rank {rank}, epoch {epoch}: {len(seen[epoch])} samples\n", end="")
