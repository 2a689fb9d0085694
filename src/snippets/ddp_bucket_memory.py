"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_bucket_memory.py --bucket-view

What gradients and DDP's buckets take up together, counted from the storages behind them.
"""

import argparse
import json

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--bucket-view", action="store_true")
args = parser.parse_args()


def all_reduce_and_note(state, bucket):
    """What DDP does without a hook, and a note of where the bucket lies."""
    buckets.append(bucket.buffer())
    return allreduce_hook(None, bucket)


dist.init_process_group("gloo")
layers = [torch.nn.Linear(512, 512) for _ in range(8)]
model = torch.nn.Sequential(*layers)
wrapped = DistributedDataParallel(model, gradient_as_bucket_view=args.bucket_view)
wrapped.register_comm_hook(None, all_reduce_and_note)
for _ in range(3):  # DDP sorts its buckets anew after the first step
    buckets = []
    wrapped.zero_grad()
    wrapped(torch.ones(4, 512)).sum().backward()


def megabytes(tensors) -> float:
    """Of the storages behind tensors, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()) / 1e6


gradients = [parameter.grad for parameter in model.parameters()]
if dist.get_rank() == 0:
    counted = {"gradients": megabytes(gradients), "buckets": megabytes(buckets)}
    print(json.dumps({**counted, "together": megabytes(gradients + buckets)}))
dist.destroy_process_group()
