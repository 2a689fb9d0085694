"""torchrun --standalone --nproc-per-node 4 src/_train_ddp.py --steps 20 --global-batch 32

Distributed data parallel: every rank trains its share of the batch, gradients are averaged.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse()
device = torch.device(context.device)

# 1. Processes
# Waits until all ranks have come; `timeout` is how long a collective may wait for one of them.
dist.init_process_group(context.backend, timeout=context.timeout)
# Which rank this is, and of how many.
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
# Gives all ranks rank 0's parameters, and averages the gradients within every backward.
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
    # This rank's part of the mean over the global batch.
    mean_loss = loss.detach() / world
    # Adds up the ranks' parts for the record, while training goes on (`async_op`).
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
# Leaves the group when all is done.
dist.destroy_process_group()
