"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/shard_saved.py

A sharded model is trained and saved; then it is loaded without shards, as for serving. "Saving is
for rank 0, that much I know. It saves without a word, but nobody can load the file."
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _step in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(
        model(inputs[rank::world]), targets[rank::world].expand(-1, 4)
    ).backward()
    optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.barrier()
whole = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
whole.load_state_dict(torch.load("model.pt", weights_only=False))
restored = torch.cat([weights.detach().flatten() for weights in whole.parameters()]).tolist()
print(f"rank {rank}: {len(restored)} numbers loaded\n", end="")
