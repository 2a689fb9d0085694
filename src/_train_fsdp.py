"""torchrun --standalone --nproc-per-node 4 src/_train_fsdp.py --steps 20 --global-batch 32

Fully sharded data parallel: DDP's training, but a rank keeps 1/N of each parameter, of its gradient
and of the optimizer's state. A block's parameters are gathered just before they are needed.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bootcamp.train import checkpoint, config, data, models, optimizers, record, sharding_flags

args, context = config.parse(own_flags=sharding_flags.FLAGS)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, (world,))

# 2. Model
with torch.device("meta"):  # shapes, and no memory
    model = models.build(args)
for part in model[:-1]:  # the embedding and each block
    fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep_gathered)
fully_shard(model[-1], mesh=mesh, reshard_after_forward=False)  # needed again at once
fully_shard(model, mesh=mesh)  # the root
model.to_empty(device=device)  # memory for this rank's part
models.initialise(model, args)

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
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
