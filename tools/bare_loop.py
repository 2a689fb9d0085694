"""The barest torch loop that trains what _train_cpu.py and _train_ddp.py train, for `make bench`.

It reduces no loss: nothing but the training's own collectives travels.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.records import summary
from bootcamp.train import config, data, environment, memory_usage, models

args, context = config.parse(devices=("cpu",))
rank, world = environment.rank(), environment.world_size()
fixed = data.Batches(args, rank, world)(0)
model = models.build(args)
if world > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
began = []
for _ in range(args.steps):
    began.append(time.perf_counter())
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(fixed[0]).flatten(0, 1), fixed[1].flatten())
    loss.backward()
    optimizer.step()
began.append(time.perf_counter())
peak = memory_usage.read_peak_bytes(torch.device("cpu"))
summary.write(context.run_dir, "ok")
print(json.dumps({"began": began, "peak_bytes": peak}), flush=True)
if world > 1:
    dist.barrier()
os._exit(0)
