"""horovodrun --gloo -np 2 python src/snippets/horovod_names.py

Two ranks sum the same two numbers, but in different order: without names, then with names.
"""

import horovod.torch as hvd
import torch

hvd.init()
rank = hvd.rank()
numbers = {"loss": torch.tensor(1.0), "tokens": torch.tensor(1000.0)}
order = ["loss", "tokens"] if rank == 0 else ["tokens", "loss"]
for named in (False, True):
    handles = {
        what: hvd.allreduce_async(numbers[what], op=hvd.Sum, name=what if named else None)
        for what in order
    }
    sums = {what: hvd.synchronize(handles[what]).item() for what in numbers}
    print(f"rank {rank}, {'with' if named else 'without'} names: {sums}", flush=True)
hvd.shutdown()
