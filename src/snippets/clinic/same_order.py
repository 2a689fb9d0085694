"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/same_order.py

32 samples, each with its number, read in three epochs by two ranks. "shuffle is True, so they are
shuffled. But the loss has a saw-tooth that comes back in every epoch."
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = torch.arange(32)
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
seen = []
for epoch in range(3):
    seen.append([])
    for batch in loader:
        seen[epoch] += batch.tolist()  # a training step in place of a list
    print(f"rank {rank}, epoch {epoch}: samples {seen[epoch][:8]} ...\n", end="")
dist.barrier()  # a rank that ends early is missed by one that is still joining
