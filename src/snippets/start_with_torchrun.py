"""torchrun --standalone --nproc-per-node 2 src/snippets/start_with_torchrun.py

torchrun runs this whole file once for each rank; the environment says who is who.
"""

import os
import sys

import torch
import torch.distributed as dist

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

dist.init_process_group("gloo")  # takes rank, world size and meeting place from the environment
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor(rank)
dist.all_reduce(total)
environment = " ".join(f"{name}={os.environ[name]}" for name in NAMES)
print(
    f"rank {rank} of {world}: the ranks' numbers add up to {total.item()}\n"
    f"    environment: {environment}\n"
    f"    arguments: {sys.argv[1:]}\n",
    end="",
)
dist.destroy_process_group()
