"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/gathered_on_rank_0.py

A sharded model is trained, and rank 0 saves all of it. "One file, so one rank puts it together. The
others have nothing to do with it, they go on to the barrier."
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
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _step in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world]).backward()
    optimizer.step()
if rank == 0:
    state = {name: shard.full_tensor() for name, shard in model.state_dict().items()}
    torch.save(state, "model.pt")
dist.barrier()
restored = torch.cat([weights.flatten() for weights in torch.load("model.pt").values()]).tolist()
print(f"rank {rank}: {len(restored)} numbers loaded\n", end="")
