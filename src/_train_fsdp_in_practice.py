"""torchrun --standalone --nproc-per-node 4 src/_train_fsdp_in_practice.py --gather-dtype bfloat16

FSDP with what people add to it: two widths of numbers, parameters kept by a few ranks between the
passes, micro-batches whose gradients are reduced once, clipped gradients.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# One flag for each of the four additions.
args, context = config.parse(own_flags=flags.SHARDING_IN_PRACTICE)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, (world,))

# 2. Model
with torch.device("meta"):
    model = models.build(args)
gather_dtype = getattr(torch, args.gather_dtype or args.dtype)
reduce_dtype = getattr(torch, args.reduce_dtype or args.dtype)
# Parameters are gathered in one width, gradients summed in another; the shards keep theirs.
policy = MixedPrecisionPolicy(gather_dtype, reduce_dtype)
for part in model[:-1]:
    # So many neighbours keep the parameters after the forward; True: all ranks together.
    fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=args.reshard or True)
fully_shard(model[-1], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
fully_shard(model, mesh=mesh, mp_policy=policy)
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
        # The rank's loss is a sum over its micro-batches.
        mean_loss = torch.zeros((), device=device, dtype=getattr(torch, args.dtype))
        shares = torch.arange(len(inputs)).chunk(args.micro_batches)
        for share in shares:
            # Gradients are added up on the rank and reduced once, after the last micro-batch.
            model.set_requires_gradient_sync(share is shares[-1])
            # A micro-batch counts with its share of the samples, so that the sum is the mean.
            loss = models.loss(model(inputs[share]), targets[share]) * len(share) / len(inputs)
            loss.backward()
            mean_loss += loss.detach()
        # Gradients are DTensors, so this is the norm of all ranks' shards together.
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
    # The rank's part of the mean over the global batch.
    mean_loss /= world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
