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
for step in range(args.steps):
    if step == 5:
        began = time.perf_counter()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(fixed[0]).flatten(0, 1), fixed[1].flatten())
    loss.backward()
    optimizer.step()
rate = (args.steps - 5) / (time.perf_counter() - began)
peak = memory_usage.peak_bytes(torch.device("cpu"))
summary.write(context.run_dir, "ok", steps=0)
print(json.dumps({"steps_per_second": rate, "peak_bytes": peak}))
sys.stdout.flush()
