"""torchrun --standalone --nproc-per-node 4 src/snippets/clinic/net_of_gpus.py

Each rank has a copy of a network that is cut over two GPUs. Slurm deals out the ranks in turn: 0, 2
and 3 are on a host with six GPUs, 1 is on a host with two. "I typed it from an old slide."
"""

import os

import torch
import torch.distributed as dist
from torch import nn

# a GPU is simulated: the CPU, under a number. On GPUs: torch.device("cuda", number)
DEVICES = [torch.device("cpu")] * int(os.environ.get("SLURM_GPUS_ON_NODE", 8))


class Net(nn.Module):
    def __init__(self, gpus):
        super().__init__()
        self.gpus = [DEVICES[number] for number in gpus]
        self.first = nn.Linear(8, 16).to(self.gpus[0])
        self.second = nn.Linear(16, 1).to(self.gpus[1])

    def forward(self, inputs):
        found = torch.tanh(self.first(inputs.to(self.gpus[0])))
        return self.second(found.to(self.gpus[1]))


dist.init_process_group("gloo")
rank, world, host = dist.get_rank(), dist.get_world_size(), int(os.environ["GROUP_RANK"])
first = 2 * rank % len(DEVICES)
gpus = [first, first + 1]
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.parallel.DDP(Net(gpus), device_ids=gpus)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _step in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
    loss.backward()
    optimizer.step()
print(f"rank {rank} on host {host} of {len(DEVICES)} GPUs trains on GPUs {gpus}\n", end="")
