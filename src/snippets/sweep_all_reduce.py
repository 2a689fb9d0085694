"""torchrun --standalone --nproc-per-node 2 src/snippets/sweep_all_reduce.py

How long an all-reduce takes, from one number to 32 MiB, on whatever back end this machine has.

`sweep.json` in the run folder holds a row for each size: the seconds of all its calls, of the
fastest, which tells what the link takes, of the median one, which tells how much the machine adds,
and the two bandwidths of the fastest as nccl-tests defines them (bootcamp/costs/alpha_beta.py).
"""

import time

import torch
import torch.distributed as dist

from bootcamp import machine
from bootcamp.costs import alpha_beta
from bootcamp.records import summary
from bootcamp.train import config

WARMUP = 3

host = machine.describe()  # before this process keeps to the cores of one rank
rounds = {"type": int, "default": 30, "help": "calls of each size"}
largest = {"type": int, "default": 2**25, "help": "bytes; less for a slow link"}
flags = {"--rounds": rounds, "--largest": largest}
args, context = config.parse(devices=("auto", "cpu", "cuda"), own_flags=flags)
device = torch.device(context.device)
wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Sizes: a line is fitted to the powers of two, and tested on those between
powers = [4 * 2**k for k in range(24)]
between = [12 * 4**k for k in range(11)]
sizes = sorted(size for size in powers + between if size <= args.largest)

# 3. Data: zeros stay zeros, however often they are added up
numbers = torch.zeros(max(sizes) // 4, device=device)

# 4. Rounds over all sizes, so that a slow moment of the machine meets each of them
seconds = torch.zeros(WARMUP + args.rounds, len(sizes), dtype=torch.float64)
for turn in range(WARMUP + args.rounds):
    dist.barrier()
    for column, size in enumerate(sizes):
        part = numbers[: size // 4]
        wait()
        began = time.perf_counter()
        dist.all_reduce(part)
        wait()
        seconds[turn, column] = time.perf_counter() - began

# 5. Record: a call has ended when its slowest rank has
seconds = seconds[WARMUP:].to(device)
dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
fastest, median = seconds.min(dim=0).values.tolist(), seconds.median(dim=0).values.tolist()
rows = [
    {
        "bytes": size,
        "seconds": fastest[column],
        "median_seconds": median[column],
        "all_seconds": seconds[:, column].tolist(),
        **alpha_beta.bandwidths(size, fastest[column], world),
        "held_out": size in between,
    }
    for column, size in enumerate(sizes)
]
if rank == 0:
    about = {"backend": context.backend, "world_size": world, "machine": host}
    summary.write_json(
        context.run_dir / "sweep.json", {**about, "rounds": args.rounds, "rows": rows}
    )
    summary.write(context.run_dir, "ok")
dist.barrier()
dist.destroy_process_group()
