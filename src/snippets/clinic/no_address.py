"""python src/snippets/clinic/no_address.py 0

And in a second terminal the same with 1 at its end: two processes, started by hand, are to add up
their numbers, 1 and 2. "torchrun is not allowed on our machine. I pass the rank myself."
"""

import sys

import torch
import torch.distributed as dist

rank, world = int(sys.argv[1]), 2
dist.init_process_group("gloo", rank=rank, world_size=world)
total = torch.tensor(rank + 1)
dist.all_reduce(total)
total = total.item()
print(f"rank {rank} of {world}: the sum of all ranks' numbers is {total}\n", end="")
