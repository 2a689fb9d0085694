"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/clipped_by_shard.py

Gradients are clipped in a sharded training: scaled down until their norm is 0.5. "I wrote it
myself, for shards. It trains. Only the loss depends on the number of ranks."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for _step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world].expand(-1, 4))
    loss.backward()
    gradients = [parameter.grad.to_local() for parameter in model.parameters()]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_((0.5 / norm).clamp(max=1.0))
    optimizer.step()
mean = loss.detach() / world
dist.all_reduce(mean)
print(f"rank {rank} of {world}: norm {norm:.3f}, loss of all samples {mean:.4f}\n", end="")
