"""srun --ntasks-per-node=1 python src/jobs/check_nodes.py

Is one of these hosts worse than the others? Each is asked for its cores, GPUs, memory, free disk
and versions; the clocks are compared, and an all-reduce is timed between each two hosts. A host
that stands out is named in the last line, as srun's --exclude takes it, and the exit code is 3.

One task for each host, MASTER_ADDR and MASTER_PORT in the environment. A host is slow if even its
fastest pair is far slower than the fastest of all: so a pair of two good hosts is never blamed, and
with two hosts alone a slow link names both.
"""

import argparse
import os
import shutil
import socket
import statistics
import sys
import time
from datetime import timedelta
from itertools import combinations

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--disk", default="/tmp", help="a folder on each host's own disk")
parser.add_argument("--least-free-gb", type=float, default=1.0, help="on that disk")
parser.add_argument("--clock-seconds", type=float, default=1.0, help="how far apart is too far")
parser.add_argument("--slower", type=float, default=0.4, help="than this share of the best pair")
parser.add_argument("--megabytes", type=float, default=4.0, help="in an all-reduce")
args = parser.parse_args()

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", timeout=timedelta(seconds=60), rank=rank, world_size=world)

# 1. What each host is
facts = {
    "host": socket.gethostname(),
    "cores": os.cpu_count(),
    "gpus": torch.cuda.device_count(),
    "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    "free_gb": round(shutil.disk_usage(args.disk).free / 1e9, 1),
    "versions": f"python {sys.version.split()[0]}, torch {torch.__version__}",
}

# 2. Its clock against rank 0's, which it asks several times: the quickest answer errs least
rounds = []
for asked in range(1, world):
    for _ in range(5):
        told = torch.zeros(1, dtype=torch.float64)
        if rank == asked:
            sent = time.time()
            dist.send(told, 0)
            dist.recv(told, 0)
            back = time.time()
            rounds.append((back - sent, (sent + back) / 2 - told.item()))
        elif rank == 0:
            dist.recv(told, asked)
            dist.send(torch.tensor([time.time()], dtype=torch.float64), asked)
facts["clock_seconds"] = round(min(rounds)[1], 3) if rounds else 0.0

# 3. The network between each two hosts
speeds = {}
message = torch.ones(int(args.megabytes * 1e6 / 4))
for pair in combinations(range(world), 2):
    group = dist.new_group(list(pair))
    if rank in pair:
        dist.all_reduce(message, group=group)  # the first one connects
        began = time.perf_counter()
        for _ in range(3):
            dist.all_reduce(message, group=group)
        speeds[pair] = 3 * message.nbytes / (time.perf_counter() - began) / 1e6
    dist.barrier()
facts["pairs"] = speeds

# 4. Who stands out
every = [None] * world
dist.all_gather_object(every, facts)
if rank == 0:
    best = {k: max(each["pairs"].values(), default=0) for k, each in enumerate(every)}
    clock = statistics.median(each["clock_seconds"] for each in every)
    bad = {}
    for k, each in enumerate(every):
        wrong = [
            f"{what} {each[what]}, most have {usual}"
            for what in ("cores", "gpus", "memory_gb", "versions")
            if each[what] != (usual := statistics.mode(other[what] for other in every))
        ]
        if each["free_gb"] < args.least_free_gb:
            wrong.append(f"{each['free_gb']} GB free in {args.disk}")
        if abs(each["clock_seconds"] - clock) > args.clock_seconds:
            wrong.append(f"its clock is {each['clock_seconds'] - clock:+.1f} s off")
        if best[k] < args.slower * max(best.values()):
            wrong.append(f"{best[k]:.0f} MB/s at best, others {max(best.values()):.0f}")
        bad |= {each["host"]: wrong} if wrong else {}
        print(
            f"{each['host']}: {each['cores']} cores, {each['gpus']} GPUs, memory of "
            f"{each['memory_gb']} GB, {each['free_gb']} GB free in {args.disk}, clock "
            f"{each['clock_seconds'] - clock:+.3f} s, {each['versions']}, "
            f"{best[k]:.0f} MB/s at best"
        )
    for host, wrong in bad.items():
        print(f"{host} stands out: {'; '.join(wrong)}")
    print(f"--exclude={','.join(bad)}" if bad else "no host stands out", flush=True)
verdict = [bool(bad)] if rank == 0 else [None]
dist.broadcast_object_list(verdict)
dist.destroy_process_group()
sys.exit(3 if verdict[0] else 0)
