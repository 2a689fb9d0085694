"""The barest torch loop that trains what _train_cpu.py trains: the yardstick of `make bench`."""

import json
import sys
import time

import torch

from bootcamp.records import summary
from bootcamp.train import config, data, memory_usage, models

args, context = config.parse(devices=("cpu",))
batches = data.Batches(args, 0, 1)
fixed = batches(0)
model = models.build(args)
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
print(json.dumps({"began": began, "peak_bytes": peak}))
sys.stdout.flush()
