"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_stopped.py --save a.pt --stop-file stop

DDP that is told to end early: once the file of --stop-file is there, all ranks save and leave after
the same step. Each looks for itself, and on a disk over a network some see the file a step later.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse(own_flags={"--stop-file": {"default": ""}})
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
model = DistributedDataParallel(model)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    told = torch.tensor(float(Path(args.stop_file).is_file()), device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    checkpoint.save(context, step, model, optimizer, now=bool(told))
    if told:
        print(f"rank {rank}: told to end, {step + 1} steps done")
        break
run.finish()
dist.destroy_process_group()
