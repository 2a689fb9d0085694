"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/own_start.py

Data parallelism by hand. Each rank adds noise of its own to its samples. "The noise has to differ,
so each rank has its own seed. The gradients are averaged, so the ranks stay together."
"""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
inputs = torch.arange(256.0).view(32, 8).sin()
targets = inputs.sum(dim=1, keepdim=True)
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
noise = []
for _step in range(10):
    optimizer.zero_grad()
    disturbed = 0.1 * torch.randn(32 // world, 8)
    noise.append(disturbed.sum().item())
    loss = nn.functional.mse_loss(model(inputs[rank::world] + disturbed), targets[rank::world])
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
size = sum(parameter.detach().square().sum() for parameter in model.parameters()).sqrt()
print(f"rank {rank}: the norm of all parameters is {size:.4f} at the end\n", end="")
