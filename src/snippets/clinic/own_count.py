"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/own_count.py

Texts of different length, with padding, which does not count in the loss. "Each rank takes the mean
over its own tokens, and DDP takes the mean over the ranks. A mean of means is a mean."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(16, 16, 8)  # (text, token, feature)
targets = inputs.cumsum(dim=1).sum(dim=2, keepdim=True)
lengths = torch.arange(1, 17)  # sorted by length, as loaders do it, so that there is little padding
counts = (torch.arange(16) < lengths[:, None])[:, :, None].float()  # 1 for a token, 0 for padding
size = 16 // world
mine = slice(rank * size, (rank + 1) * size)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _step in range(10):
    optimizer.zero_grad()
    squares = (model(inputs[mine]) - targets[mine]).square() * counts[mine]
    loss = squares.sum() / counts[mine].sum()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    everything = ((model.module(inputs) - targets).square() * counts).sum() / counts.sum()
print(f"rank {rank} of {world}: the loss of all tokens is {everything.item():.2f}\n", end="")
