"""torchrun --standalone --nproc-per-node 4 src/_train_striped.py --model striped-lstm

Stripes over ranks: a rank keeps some stripes of each layer's LSTM. All ranks see all samples.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# The ranks hold one model together, so they share each batch.
args, context = config.parse(mesh=("tensor",))
# How many stripes a rank gets; refuses a number of ranks that does not divide them.
stripes = flags.count_parts_of_rank(context, "striped-lstm", "stripes")
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
# What DTensors are laid out on: all ranks in one line.
mesh = init_device_mesh(device.type, context.mesh)


def enter(lstm, inputs):
    """Forward: nothing. Backward: the sum of the gradients of all ranks' stripes."""
    # Says that all ranks have this input, which moves nothing.
    same = DTensor.from_local(inputs[0], mesh, [Replicate()])
    # Says that a rank's gradient is one part of a sum; the backward pass then all-reduces it.
    return same.to_local(grad_placements=[Partial()])


def leave(lstm, inputs, result):
    """Forward: the outputs of all ranks' stripes side by side. Backward: each takes its part."""
    output, state = result
    # One all-gather for all time steps; `state` stays that of the rank's own stripes.
    return DTensor.from_local(output, mesh, [Shard(-1)]).full_tensor(), state


# 2. Model
# Every rank builds the complete model, so that parameters are the baseline's.
model = models.build(args)
for layer in model[1:-1]:
    # Rank 0 keeps the first stripes, rank 1 the next; `Shard(-1)` relies on this order.
    layer.lstm.keep(range(rank * stripes, (rank + 1) * stripes))
    # Stands around the LSTM alone, so the sum `x + output` of the layer is computed by each rank.
    layer.lstm.register_forward_pre_hook(enter)
    layer.lstm.register_forward_hook(leave)
model = model.to(device)

# 3. Data
# All ranks get the same batch: they train one model together.
batches = data.Batches(args, 0, 1)

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
    # All ranks have the same loss, so nothing is averaged.
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
