"""torchrun --standalone --nproc-per-node 4 src/_train_zero1.py --steps 20 --global-batch 32

ZeRO stage 1 in plain torch: DDP, but each rank keeps the optimizer's state of its share of the
parameters only. It updates these and sends them to the others.
"""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse()
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
# The optimizer's class and settings, not an optimizer: each rank builds one over its share.
kind, settings = optimizers.choose(args)
# Each rank keeps the state of some tensors, updates these, and sends them to the others.
optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, **settings)
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
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
