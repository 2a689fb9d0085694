"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/forked_late.py

A thread writes a log to a slow disk; a worker process reads the samples and logs each of them. "It
stands still before the first batch, but only on the cluster, and only since we log."
"""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

log, written, writing = [], threading.Lock(), threading.Event()


def write_log():
    while True:
        with written:  # whoever adds to the log waits as long as it is being written
            writing.set()
            time.sleep(0.1)  # the slow disk
        time.sleep(0.001)  # others take their turn


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, number):
        with written:
            log.append(number)
        return number, os.getpid()


dist.init_process_group("gloo")
rank, world, process = dist.get_rank(), dist.get_world_size(), os.getpid()
threading.Thread(target=write_log, daemon=True).start()
writing.wait()
mine = torch.utils.data.Subset(Numbers(), range(rank, 32, world))
batches = iter(DataLoader(mine, batch_size=4, num_workers=1))
seen, readers = [[]], []
for numbers, processes in batches:
    seen[0] += numbers.tolist()  # a training step in place of a list
    readers += processes.tolist()
print(f"rank {rank} has read samples {seen[0]}\n", end="")
dist.barrier()
