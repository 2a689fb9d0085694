"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_scaler.py

GradScaler over ranks: in step 1 a gradient of rank 1 is infinite. Averaged by DDP before the scaler
looks, and averaged by hand after it has looked. Prints each rank's scale and parameter.
"""

import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for by_hand in (False, True):
    torch.manual_seed(0)
    layer = torch.nn.Linear(1, 1, bias=False)
    model = layer if by_hand else DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(2):
        optimizer.zero_grad()
        wrong = (rank, step) == (1, 1)
        loss = model(torch.ones(1, 1)).sum() * (float("inf") if wrong else rank + 1.0)
        scaler.scale(loss).backward()
        if by_hand:
            scaler.unscale_(optimizer)  # here each rank looks for infinities
            finite = layer.weight.grad.nan_to_num(posinf=0.0, neginf=0.0)
            dist.all_reduce(finite)
            layer.weight.grad.copy_(finite / world)
        scaler.step(optimizer)
        scaler.update()
    said = {"averaged": "after the scaler looked" if by_hand else "by DDP", "rank": rank}
    print(json.dumps(said | {"scale": scaler.get_scale(), "weight": layer.weight.item()}))
dist.destroy_process_group()
