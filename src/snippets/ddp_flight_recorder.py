"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_flight_recorder.py

The ranks diverge: only rank 0 averages the loss. Each dumps what its flight recorder has kept.
"""

import os
import pickle
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=1))
rank = dist.get_rank()
gradient, loss, stop = torch.ones(1000), torch.ones(1), torch.zeros(1)
try:
    for step in range(10):
        dist.all_reduce(gradient)
        if step == 3 and rank == 0:
            dist.all_reduce(loss)
        dist.broadcast(stop, src=0)
except RuntimeError as error:
    print(f"rank {rank}: {error}")

# With NCCL torch's watchdog writes such a file for each rank when a collective times out. Here the
# script does, and gives the default group its number, under which gloo records its collectives.
dump = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())
dump["pg_config"] = {"0": dump["pg_config"].pop("") | {"name": "0"}}
folder = Path(os.environ.get("BOOTCAMP_RUN", "logs")) / "flight_recorder"
folder.mkdir(parents=True, exist_ok=True)
(folder / f"rank_{rank}").write_bytes(pickle.dumps(dump))
dist.destroy_process_group()
