"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/own_part_first.py

Each rank keeps the optimizer of some parameters only, updates these, and sends them to the others.
"Every rank sends its own part first and takes the others' after that, so nobody waits."
"""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
parts = [list(model.parameters())[owner::world] for owner in range(world)]
optimizer = torch.optim.SGD(parts[rank], lr=0.05, momentum=0.9)
for _step in range(5):
    model.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    for owner in sorted(range(world), key=lambda other: other != rank):
        for parameter in parts[owner]:
            dist.broadcast(parameter.data, src=owner)
print(f"rank {rank}: the loss of its share is {loss.item():.3f}\n", end="")
