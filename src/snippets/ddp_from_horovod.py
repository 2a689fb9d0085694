"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_from_horovod.py --optimizer sgd

The DDP counterpart of horovod_scaled.py: the factor at the learning rate and the clipping stay.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import config, data, models, optimizers, record

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
optimizer = optimizers.build(args, model.parameters())
for group in optimizer.param_groups:
    group["lr"] *= world

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
run.finish()
dist.destroy_process_group()
