"""torchrun --standalone --nproc-per-node 4 src/snippets/clinic/wrapped_twice.py

Hybrid sharding: rows of two ranks hold a copy of the model together, and the rows average their
gradients. "It is sharded inside and replicated outside. So I need FSDP and DDP, don't I?"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
row = min(2, world)
mesh = init_device_mesh("cpu", (world // row, row), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.Linear(4, 1))
fully_shard(model, mesh=mesh)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _step in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
    loss.backward()
    optimizer.step()
print(f"rank {rank}: the loss of its share is {loss.item():.3f}\n", end="")
