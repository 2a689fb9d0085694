"""torchrun --standalone --nproc-per-node 2 src/snippets/meet.py

Meets the other ranks over gloo, and says what this host's own name means to it. Started by srun
alone it takes its number from Slurm. Where the ranks can't meet, it says why and fails.
"""

import datetime
import os
import socket
import sys

import torch.distributed as dist

OF_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS"}

for name, its in OF_SLURM.items():
    if name not in os.environ:
        os.environ[name] = os.environ[its]
rank, host = os.environ["RANK"], socket.gethostname()
print(f"rank {rank}: {host} is {socket.gethostbyname(host)}", flush=True)
# on a busy machine one starts long after the other; to connect takes no time
store, me, world = next(dist.rendezvous("env://", timeout=datetime.timedelta(minutes=2)))
seconds = datetime.timedelta(seconds=5)
try:
    dist.init_process_group("gloo", store=store, rank=me, world_size=world, timeout=seconds)
except RuntimeError as error:
    sys.exit(f"rank {rank}: {str(error).splitlines()[0]}")
dist.barrier()
print(f"rank {rank}: all {dist.get_world_size()} have met", flush=True)
dist.barrier()  # nobody leaves while another is still looking for it
dist.destroy_process_group()
