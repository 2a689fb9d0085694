"""torchrun --standalone --nproc-per-node 2 src/snippets/who_am_i.py

A line from each process: its host, and who the environment says it is. It loads no torch and meets
nobody, so it shows in a moment how a launcher numbers processes.
"""

import os
import socket

BY_TORCHRUN = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")
BY_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")

names = BY_TORCHRUN if "RANK" in os.environ else BY_SLURM
said = "  ".join(f"{name}={os.environ.get(name, '-')}" for name in names)
print(f"{socket.gethostname()}: {said}", flush=True)
