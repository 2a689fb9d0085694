"""torchrun --standalone --nproc-per-node 4 src/_train_ddp_by_hand.py --steps 20 --global-batch 32

Data parallelism without the library: equal parameters at the start, averaged gradients every step.
"""

import torch
import torch.distributed as dist

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse()
device = torch.device(context.device)

# 1. Processes
# Waits until all ranks have come; `timeout` is how long a collective may wait for one of them.
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
for parameter in model.parameters():
    # Gives all ranks rank 0's parameters, so that they begin alike.
    dist.broadcast(parameter.data, src=0)

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
        for parameter in model.parameters():
            # Adds up the gradients of all ranks; every rank gets the sum.
            dist.all_reduce(parameter.grad)
            # Makes the sum a mean, which is the gradient of the mean over the global batch.
            parameter.grad /= world
        optimizer.step()
    mean_loss = loss.detach() / world
    # Adds up the ranks' parts for the record, while training goes on (`async_op`).
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
# Leaves the group when all is done.
dist.destroy_process_group()
