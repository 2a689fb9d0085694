"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/read_again.py

An epoch has eight steps. The job is ended after four and started again. "It resumes at step 4, with
the weights and the momentum of step 4. Still, the result is not that of a job that ran through."
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
inputs = torch.arange(256.0).view(32, 8).sin()
targets = inputs.sum(dim=1, keepdim=True)
seen = [[]]
for last in (4, 8):  # two jobs, one after the other
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    done = 0
    if os.path.exists("checkpoint.pt"):
        state = torch.load("checkpoint.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    loader = DataLoader(range(32), batch_size=2, sampler=DistributedSampler(range(32)))
    for step, batch in enumerate(loader, done):
        if step == last:
            break
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        seen[0] += batch.tolist()
    print(f"rank {rank}: steps {done} to {step - 1}, samples {seen[0]}\n", end="")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": last}
    if rank == 0:
        torch.save(state, "checkpoint.pt")
    dist.barrier()
