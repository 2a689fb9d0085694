"""Flags of its own, none of them the course's: --epochs, --out, and a verb."""

import argparse
import datetime
import pathlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("verb", choices=("train", "test"))
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--port", help="of a dashboard")
parser.add_argument("--out", type=pathlib.Path, required=True)
options = parser.parse_args()

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
adam = torch.optim.Adam(net.parameters())
for epoch in range(options.epochs):
    x = torch.randn(32 // size, 8)
    loss = net(x).pow(2).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    if rank == 0:
        with open(options.out, "a") as log:
            log.write(f"{options.verb} {epoch} {loss.item():.6f} port {options.port}\n")
dist.barrier()
dist.destroy_process_group()
