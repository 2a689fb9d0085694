"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/drawn_anew.py

32 samples, each with its number; 8 of them, chosen at random, are kept apart for validation. "Each
position of the training data is read by one rank only. But the validation is too good."
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, random_split

dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = torch.arange(32)
train, valid = random_split(dataset, [24, 8])
sampler = DistributedSampler(train, shuffle=True)
loader = DataLoader(train, batch_size=4, sampler=sampler)
seen = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    seen.append([])
    for batch in loader:
        seen[epoch] += batch.tolist()  # a training step in place of a list
held_out = [int(sample) for sample in valid]
print(f"rank {rank}: {len(sampler)} positions an epoch, validates with {held_out}\n", end="")
dist.barrier()  # a rank that ends early is missed by one that is still joining
