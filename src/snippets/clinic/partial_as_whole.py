"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/partial_as_whole.py

An adapter beside a trained layer; its inner width is split over two ranks, which read one batch.
"from_local wants a placement. The result has its full shape on each rank, so it is replicated. The
first loss is that of one rank to the last digit."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))


class Adapted(nn.Module):
    """A frozen layer, an adapter that begins at zero, and a head."""

    def __init__(self):
        super().__init__()
        self.trained = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 1)
        self.down = nn.Parameter((torch.randn(8, 8) / 8**0.5).chunk(world)[rank].clone())
        self.up = nn.Parameter(torch.zeros(8 // world, 8))

    def forward(self, inputs):
        mine = inputs @ self.down.T @ self.up
        added = DTensor.from_local(mine, mesh, [Replicate()])
        added = added.redistribute(placements=[Replicate()]).to_local()
        return self.head(torch.tanh(self.trained(inputs) + added))


torch.manual_seed(0)
model = Adapted()
inputs = torch.randn(20, 32, 8)
targets = inputs.sum(dim=2, keepdim=True).sin()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[step]), targets[step])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"rank {rank}: the loss falls from {losses[0]:.3f} to {losses[-1]:.3f}\n", end="")
