"""torchrun --standalone --nproc-per-node 4 src/_train_local_sgd.py --steps 20 --average-every 4

Local SGD: each rank trains alone, and every few steps the ranks average their parameters, not
their gradients (Stich, arXiv:1805.09767). It is not the baseline's training.
"""

import torch
import torch.distributed as dist

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# A flag says how many steps each rank trains alone.
args, context = config.parse(own_flags={"--average-every": {"type": int, "default": 4}})
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
for parameter in model.parameters():
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
        optimizer.step()
        # Only after that many steps are all ranks' parameters the same.
        if (step + 1) % args.average_every == 0:
            for parameter in model.parameters():
                # Adds up the parameters themselves: no gradient travels.
                dist.all_reduce(parameter.data)
                # Makes the sum a mean.
                parameter.data /= world
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    if (step + 1) % args.average_every == 0:
        # Saves at these moments only: between them rank 0's parameters are no other rank's.
        checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
