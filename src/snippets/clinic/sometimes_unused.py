"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/sometimes_unused.py

A network with two heads, the second of which is trained in every other step. "It works on one
device. With DDP the first step goes well, and then this."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.first = nn.Linear(16, 1)
        self.second = nn.Linear(16, 1)

    def forward(self, inputs, with_second: bool):
        found = torch.tanh(self.body(inputs))
        return self.first(found) + self.second(found) if with_second else self.first(found)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = DistributedDataParallel(TwoHeads())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    optimizer.zero_grad()
    outputs = model(inputs[rank::world], with_second=step % 2 == 1)
    loss = nn.functional.mse_loss(outputs, targets[rank::world])
    loss.backward()
    optimizer.step()
    print(f"rank {rank}, step {step}: the loss of its share is {loss.item():.3f}\n", end="")
