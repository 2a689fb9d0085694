"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_boilerplate.py

What people write around DDP, for GPUs and for CPU ranks: the device, the process group, the
wrapper, and a file that rank 0 saves and all ranks load. Prints what it did as JSON.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
if on_gpus:
    torch.cuda.set_device(device)  # before the group and any "cuda" without a number
dist.init_process_group("nccl" if on_gpus else "gloo", device_id=device if on_gpus else None)
rank = dist.get_rank()

torch.manual_seed(rank)  # DDP gives all ranks rank 0's parameters
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).to(device)
refused = ""
try:
    DistributedDataParallel(nn.Linear(4, 1), device_ids=[local_rank])  # lies on the CPU
except ValueError as error:
    refused = str(error).partition(", but got")[0]
wrapped = DistributedDataParallel(model, device_ids=[local_rank] if on_gpus else None)
wrapped(torch.ones(2, 4, device=device)).sum().backward()

path = Path(os.environ.get("BOOTCAMP_RUN", ".")) / "model.pt"
if rank == 0:
    torch.save(wrapped.module.state_dict(), path)
dist.barrier()  # no rank reads before the file is complete
loaded = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).to(device)
loaded.load_state_dict(torch.load(path, map_location=device))
same = all(map(torch.equal, loaded.parameters(), wrapped.module.parameters()))
old = wrapped.state_dict()  # as in files that somebody saved without .module
names = list(old)
nn.modules.utils.consume_prefix_in_state_dict_if_present(old, "module.")
repaired = list(old) == list(torch.load(path, map_location=device))
said = {"rank": rank, "device": str(device), "device_ids on the CPU": refused}
said |= {
    "wrapper's names": names[:2],
    "loads rank 0's parameters": same,
    "prefix removed": repaired,
}
print(json.dumps(said))
dist.destroy_process_group()
