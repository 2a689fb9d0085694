"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/moved_on_rank_0.py

The model is made in one place (the meta device, which holds no numbers) and moved to another (the
CPU), where it is trained. "Rank 0 has the real model. DDP copies it to the others anyway."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
torch.manual_seed(0)
inputs = torch.randn(32, 8, device=device)
targets = inputs.sum(dim=1, keepdim=True)
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
if rank == 0:
    model.to_empty(device=device)
for layer in model:
    layer.reset_parameters()
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _step in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
    loss.backward()
    optimizer.step()
print(f"rank {rank}: the loss of its share is {loss.item():.3f}\n", end="")
