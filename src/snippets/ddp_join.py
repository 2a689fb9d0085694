"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_join.py

Ranks with unequally many batches. In each batch a rank's own gradient is 1, so that the averaged
one tells how many ranks took part, and by how many it was divided.
"""

import argparse
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--without-join", action="store_true")
parser.add_argument("--divide-by-present", action="store_true", help="not by all ranks")
parser.add_argument("--timeout", type=float, default=60.0)
args = parser.parse_args()

dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
batches = [torch.ones(1, 1)] * (2 + world - rank)  # rank 0 has the most
uneven = model.join(divide_by_initial_world_size=not args.divide_by_present)
with nullcontext() if args.without_join else uneven:
    for number, batch in enumerate(batches):
        model.zero_grad()
        model(batch).sum().backward()
        gradient = model.module.weight.grad.item()
        print(f"rank {rank}, batch {number}: gradient {gradient:g}\n", end="", flush=True)
dist.barrier()  # the epoch is over: wait for the others
dist.destroy_process_group()
