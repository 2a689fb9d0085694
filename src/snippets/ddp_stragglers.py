"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_stragglers.py --late 1 --by 0.3

Every rank times its own work in every step: from the step's start until its last gradients are
ready, before it waits for anybody. Rank --late takes longer by a share of that. Prints JSON.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

BEFORE = 10  # steps until the late rank begins to be late
parser = argparse.ArgumentParser()
parser.add_argument("--late", type=int, default=-1, help="-1: no rank")
parser.add_argument("--by", type=float, default=0.3)
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))))
ready = [0.0]


def all_reduce_and_note(group, bucket):
    """DDP's own all-reduce; notes when this rank had a bucket full, the last one last."""
    ready[0] = time.perf_counter()
    return allreduce_hook(group, bucket)


model.register_comm_hook(None, all_reduce_and_note)
own, rest = [], []
for step in range(args.steps):
    began = time.perf_counter()
    inputs = torch.ones(128, 512)
    if rank == args.late and step >= BEFORE:
        time.sleep(args.by * statistics.quantiles(own[1:BEFORE])[0])  # slow storage
    model.zero_grad()
    model(inputs).sum().backward()
    own.append(ready[0] - began)
    rest.append(time.perf_counter() - ready[0])
print(json.dumps({"rank": rank, "own": own[BEFORE:], "rest": rest[BEFORE:]}))
dist.destroy_process_group()
