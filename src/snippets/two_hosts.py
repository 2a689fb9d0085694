"""torchrun --standalone --nproc-per-node 2 src/snippets/two_hosts.py

What rank 0 sees of its host, and how long 5 MB take from it to each of the other ranks.
It prints a line for each of them, with the bytes that each network interface of its host has sent.
"""

import json
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

COUNTERS = Path("/proc/self/net/dev")  # of Linux

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
names = [None] * world
dist.all_gather_object(names, socket.gethostname())
block, answer = torch.zeros(1_250_000), torch.zeros(1)  # 4 bytes each


def read_sent_bytes():
    """{interface: bytes that it has sent}, from the kernel's table."""
    lines = COUNTERS.read_text().splitlines()[2:] if COUNTERS.exists() else []
    counters = dict(line.split(":") for line in lines)
    return {name.strip(): int(numbers.split()[8]) for name, numbers in counters.items()}


for other in range(1, world):
    dist.barrier()
    before, began = read_sent_bytes(), time.perf_counter()
    if rank == 0:
        dist.send(block, other)
        dist.recv(answer, other)
        seconds, after = time.perf_counter() - began, read_sent_bytes()
        line = {"to rank": other, "from host": names[0], "to host": names[other]}
        line |= {"seconds": seconds, "bytes": 4 * len(block)}
        print(json.dumps(line | {"sent": {name: after[name] - before[name] for name in after}}))
    elif rank == other:
        dist.recv(block, 0)
        dist.send(answer, 0)
dist.barrier()
dist.destroy_process_group()
