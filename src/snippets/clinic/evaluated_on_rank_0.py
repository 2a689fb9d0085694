"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/evaluated_on_rank_0.py

After every epoch rank 0 measures the loss on the validation data, and the other ranks wait for it.
"One rank is enough for that. There is even a barrier, so nobody runs ahead."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs, valid = torch.randn(32, 8), torch.randn(16, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
measured = []
for epoch in range(3):
    mine = inputs[rank::world]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(mine), mine.sum(dim=1, keepdim=True)).backward()
    optimizer.step()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(valid), valid.sum(dim=1, keepdim=True))
        model.train()
        measured.append(loss.item())
        print(f"epoch {epoch}: the validation loss is {measured[-1]:.3f}")
    dist.barrier()
