"""python src/snippets/clinic/spawned_per_machine.py 0

Two machines with two ranks each add up the numbers 1 to 4. The 0 is the number of the machine; it
runs on that one only, so far. "The outer loop goes over the machines, as on the slide. It waits."
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

MACHINES, GPUS = 2, 2  # the GPUs of a machine are CPU cores here
PATIENCE = timedelta(seconds=5)  # without it, half an hour
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # machine 0, which here is machine 1 too
os.environ.setdefault("MASTER_PORT", "29518")


def train(gpu, machine, totals):
    rank, world = machine * GPUS + gpu, MACHINES * GPUS
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=PATIENCE)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    totals[rank] += total
    print(f"rank {rank} of {world}: the sum of all ranks' numbers is {total}\n", end="")


if __name__ == "__main__":
    here = int(sys.argv[1])
    totals = torch.zeros(MACHINES * GPUS).share_memory_()  # by rank: those started by this program
    for machine in range(MACHINES):
        mp.spawn(train, args=(machine, totals), nprocs=GPUS)
    totals = totals.tolist()
