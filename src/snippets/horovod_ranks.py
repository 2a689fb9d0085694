"""horovodrun --gloo -np 2 python src/snippets/horovod_ranks.py

Who is who under Horovod, its collectives, and the learning rate before and after wrapping.
"""

import horovod.torch as hvd
import torch

hvd.init()
rank = hvd.rank()
mine = torch.tensor(float(rank))
mean = hvd.allreduce(mine, name="mean").item()
total = hvd.allreduce(mine, name="total", op=hvd.Sum).item()
of_rank_0 = hvd.broadcast(mine, root_rank=0, name="first").item()
optimizer = torch.optim.SGD([torch.nn.Parameter(mine)], lr=0.05)
wrapped = hvd.DistributedOptimizer(optimizer)
print(
    f"rank {rank} of {hvd.size()}, on this machine {hvd.local_rank()} of {hvd.local_size()}\n"
    f"    the ranks' numbers: mean {mean}, sum {total}, rank 0's {of_rank_0}\n"
    f"    learning rate {optimizer.param_groups[0]['lr']}, wrapped {wrapped.param_groups[0]['lr']}",
    flush=True,
)
hvd.shutdown()
