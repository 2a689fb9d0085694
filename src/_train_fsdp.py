"""torchrun --standalone --nproc-per-node 4 src/_train_fsdp.py --steps 20 --global-batch 32

Fully sharded data parallel: DDP's training, but a rank keeps 1/N of each parameter, of its gradient
and of the optimizer's state. A block's parameters are gathered just before they are needed.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# A flag asks whether gathered parameters are kept until the backward pass.
args, context = config.parse(own_flags=flags.SHARDING)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
# One axis: parameters are sharded over all ranks.
mesh = init_device_mesh(device.type, (world,))

# 2. Model
# What is made in here has shapes and no memory.
with torch.device("meta"):
    # All layers: with numbers, a model that needs several ranks would fit on none of them.
    model = models.build(args)
# What one call shards is gathered together, and a block is a good size for that.
for part in model[:-1]:
    # Gathers this part's parameters before use, frees them after, reduce-scatters their gradients.
    fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep_gathered)
# The head stays gathered: the backward pass begins with it, and would gather it again at once.
fully_shard(model[-1], mesh=mesh, reshard_after_forward=False)
# Makes the model the root, which knows all units and their order, and takes what is left.
fully_shard(model, mesh=mesh)
# Gives memory to what is left on this rank, its parts; what stands in it is arbitrary.
model.to_empty(device=device)
# Draws one stage after another as the baseline does, and keeps this rank's part of each.
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
