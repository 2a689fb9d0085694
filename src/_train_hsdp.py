"""torchrun --standalone --nproc-per-node 4 src/_train_hsdp.py --shard 2

Hybrid sharding: the model is sharded over the ranks of a row of the mesh (a host), and each row
has a replica of it. Only the gradients of a shard travel between the rows.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# A flag says how many ranks are a row; the number of all ranks divides by it.
args, context = config.parse(own_flags=flags.HYBRID_SHARDING)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
# Rows of that many ranks; as launchers number ranks host by host, a row can be a host.
shape = (world // args.shard, args.shard)
# Two axes make FSDP hybrid: it shards over the second and has a copy for each of the first.
mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))

# 2. Model
with torch.device("meta"):
    model = models.build(args)
for part in model[:-1]:
    fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep_gathered)
fully_shard(model[-1], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
model.to_empty(device=device)
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
