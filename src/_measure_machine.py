"""torchrun --standalone --nproc-per-node 2 src/_measure_machine.py

How long kernels, collectives and the data take on this machine, all ranks at once: what a planner
needs to know of it. `measured.json` in the run folder has it, from rank 0.
"""

import time
from argparse import Namespace

import torch
import torch.distributed as dist

from bootcamp.records import summary
from bootcamp.train import config, data, kernel_times

args, context = config.parse(devices=("cpu",))

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Kernels, while the other ranks compute, too
dist.barrier()
kernels = kernel_times.measure()

# 3. Collectives: zeros stay zeros. A call of each size and kind in turn, so that a slow moment of
# the machine meets each of them; the fastest counts
sizes = [4096 * 4**power for power in range(6)]
numbers, parts = torch.zeros(max(sizes) // 4), torch.zeros(max(sizes) // 4 // world)


def swap(whole, part):
    """One rank sends what the other receives, and back: two messages one after another."""
    for sender in (0, 1):
        if rank in (0, 1):
            (dist.send if rank == sender else dist.recv)(whole, 1 - rank)


calls = {
    "all-reduce": lambda whole, part: dist.all_reduce(whole),
    "all-gather": lambda whole, part: dist.all_gather_into_tensor(whole, part),
    "reduce-scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole),
    "send": swap,
}
rows = {kind: [] for kind in calls if world > 1}
for kind, call in calls.items():
    for size in sizes if world > 1 else ():
        whole, part = numbers[: size // 4], parts[: size // 4 // world]
        seconds = []
        for _ in range(25):
            dist.barrier()
            began = time.perf_counter()
            call(whole, part)
            seconds.append(time.perf_counter() - began)
        fastest = min(seconds) / (2 if kind == "send" else 1)
        rows[kind].append({"bytes": size, "seconds": fastest})

# 4. Data: seconds of a batch of so many samples
batches = {}
for samples in (4, 64):
    draw = data.Batches(Namespace(**{**vars(args), "global_batch": samples}), 0, 1)
    seconds = []
    for step in range(20):
        began = time.process_time()
        draw(step)
        seconds.append(time.process_time() - began)
    batches[samples] = sorted(seconds)[len(seconds) // 2]

# 5. Record
if rank == 0:
    found = {"ranks": world, "kernels": kernels, "collectives": rows, "batches": batches}
    summary.write_json(context.run_dir / "measured.json", found)
    summary.write(context.run_dir, "ok", steps=0)
dist.barrier()
dist.destroy_process_group()
