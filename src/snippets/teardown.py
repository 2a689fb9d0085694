"""torchrun --standalone --nproc-per-node 2 src/snippets/teardown.py

Makes and destroys process groups that a DistributedDataParallel object still refers to. It hangs.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
for cycle in range(20):
    group = dist.new_group()
    model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group)
    loss = model(torch.ones(1, 4)).sum()
    loss.backward()
    dist.destroy_process_group(group)
    del group
    del model, loss
    if dist.get_rank() == 0:
        print(f"made and destroyed {cycle + 1} process groups")
dist.destroy_process_group()
