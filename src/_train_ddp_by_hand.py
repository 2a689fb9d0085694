"""torchrun --standalone --nproc-per-node 4 src/_train_ddp_by_hand.py --steps 20 --global-batch 32

Data parallelism without the library: equal parameters at the start, averaged gradients every step.
"""

import torch
import torch.distributed as dist

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args = config.parse()
device = torch.device(args.device)

# 1. Processes
dist.init_process_group(args.backend, timeout=args.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(args, model, optimizer)

# 5. Training loop
run = record.Run(args, model, optimizer, batches, world)
for step in range(first, args.steps):
    inputs, targets = (tensor.to(device) for tensor in batches(step))
    optimizer.zero_grad()
    loss = models.loss(model(inputs), targets)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    mean_loss = loss.detach() / world
    dist.all_reduce(mean_loss)
    run.step(step, mean_loss)
    checkpoint.save(args, step, model, optimizer)
run.finish()
dist.destroy_process_group()
