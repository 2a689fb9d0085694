"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/streamed.py

The samples come as a stream, which two worker processes of each rank read. "An epoch takes as long
as on one device with one worker. More ranks do not help, and the model overfits."
"""

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def __iter__(self):
        yield from range(32)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
loader = DataLoader(Stream(rank, world), batch_size=4, num_workers=2)
seen = [[]]
for batch in loader:
    seen[0] += batch.tolist()  # a training step in place of a list
print(f"rank {rank}: {len(seen[0])} samples, which begin with {seen[0][:8]}\n", end="")
dist.barrier()
