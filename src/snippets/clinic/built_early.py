"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/built_early.py

A script for one device was sharded by adding two lines. "No error, no warning. Memory has fallen as
promised. Only the loss does not move; I will try a larger learning rate."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
fully_shard(model)
for step in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
    loss.backward()
    optimizer.step()
    print(f"rank {rank}, step {step}: the loss of its share is {loss.item():.3f}\n", end="")
