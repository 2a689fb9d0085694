"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_device_ids.py

What DistributedDataParallel says to models that lie on the CPU, on two devices, or on two kinds.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
on_cpu = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
two_kinds = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to("meta"))
for words, model, device_ids in (
    ("two device_ids", on_cpu, [0, 1]),
    ("a CPU model, one device_id", on_cpu, [0]),
    ("two kinds of devices", two_kinds, None),
    ("a CPU model, device_ids=None", on_cpu, None),
):
    try:
        DistributedDataParallel(model, device_ids=device_ids)
        answer = "accepted"
    except (ValueError, RuntimeError) as error:
        answer = f"{type(error).__name__}: {error}"
    if dist.get_rank() == 0:
        print(f"{words}\n    {answer}")
dist.destroy_process_group()
