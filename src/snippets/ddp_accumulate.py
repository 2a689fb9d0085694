"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_accumulate.py --micro-batches 4

Gradient accumulation: ranks average their gradients once, after the last of several micro-batches.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import config, data, models, optimizers, record

args, context = config.parse(own_flags={"--micro-batches": {"type": int, "default": 4}})
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

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device).chunk(args.micro_batches) for tensor in batches(step))
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for micro in range(args.micro_batches):
            last = micro == args.micro_batches - 1
            synchronise = nullcontext() if last else model.no_sync()
            with synchronise:
                micro_loss = models.loss(model(inputs[micro]), targets[micro]) / args.micro_batches
                micro_loss.backward()
            loss += micro_loss.detach()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
run.finish()
dist.destroy_process_group()
