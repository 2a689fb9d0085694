"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_boilerplate.py

What people write around DDP, for GPUs and for CPU ranks: the device, the process group, the
wrapper, and a file that rank 0 saves and all ranks load.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cpu")
if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
    torch.accelerator.set_device_index(local_rank)  # before the group and any "cuda" without number
    device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
on_gpus = device.type != "cpu"
backend = dist.get_default_backend_for_device(device)
dist.init_process_group(backend, device_id=device if on_gpus else None)
rank = dist.get_rank()

torch.manual_seed(rank)  # DDP gives all ranks rank 0's parameters
model = nn.Linear(4, 1).to(device)
wrapped = DistributedDataParallel(model, device_ids=[local_rank] if on_gpus else None)
wrapped(torch.ones(2, 4, device=device)).sum().backward()

path = Path(os.environ.get("BOOTCAMP_RUN", ".")) / "model.pt"
if rank == 0:
    torch.save(wrapped.module.state_dict(), path)
dist.barrier()  # no rank reads before the file is complete
loaded = nn.Linear(4, 1).to(device)
loaded.load_state_dict(torch.load(path, map_location=device))
same = all(map(torch.equal, loaded.parameters(), model.parameters()))
print(f"rank {rank}: {backend} on {device}, {list(wrapped.state_dict())}, loaded: {same}")
dist.destroy_process_group()
