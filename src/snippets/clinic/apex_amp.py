"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/apex_amp.py

Data parallel training in mixed precision. "The tutorial is from 2019, but it has many stars."
"""

import torch
import torch.distributed as dist
from apex import amp
from apex.parallel import DistributedDataParallel
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
model = DistributedDataParallel(model)
for _step in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]).float(), targets[rank::world])
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
print(f"rank {rank}: the loss of its share is {loss.item():.3f}\n", end="")
