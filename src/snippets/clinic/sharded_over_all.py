"""torchrun --standalone --nproc-per-node 4 src/snippets/clinic/sharded_over_all.py

Pairs of ranks hold half of each matrix (tensor parallelism), and FSDP shards these halves. "With
FSDP first, parallelize_module refuses. So I cut by hand, FSDP is last, and memory fell even more."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
split = min(2, world)
mesh = init_device_mesh("cpu", (world // split, split), mesh_dim_names=("data", "tensor"))
row, rows, column = mesh.get_local_rank("data"), mesh.size(0), mesh.get_local_rank("tensor")


class Halves(nn.Module):
    """A column split and a row split, whose results are added up over the pair."""

    def __init__(self, into, out):
        super().__init__()
        self.into = nn.Parameter(into.chunk(split)[column].clone())
        self.out = nn.Parameter(out.chunk(split)[column].clone())

    def forward(self, inputs):
        mine = torch.tanh(inputs @ self.into.T) @ self.out
        total = mine.detach().clone()
        dist.all_reduce(total, group=mesh["tensor"].get_group())
        return mine + (total - mine).detach()  # the sum, with the gradient of this rank's part


torch.manual_seed(0)
inputs = torch.randn(20, 32, 8)
targets = inputs.sum(dim=2, keepdim=True).sin()
model = Halves(torch.randn(16, 8) / 8**0.5, torch.randn(16, 1) / 4)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[step, row::rows]), targets[step, row::rows])
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    losses.append(mean.item())
print(f"rank {rank}: the loss falls from {losses[0]:.3f} to {losses[-1]:.3f}\n", end="")
