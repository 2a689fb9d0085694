"""torchrun --standalone --nproc-per-node 4 src/_train_striped.py --model striped-lstm

Stripes over ranks: a rank keeps some stripes of each layer's LSTM. All ranks see all samples.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from bootcamp.train import checkpoint, config, data, models, optimizers, record, tensor_flags

args, context = config.parse(mesh=("tensor",))
stripes = tensor_flags.stripes_of_each(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh)


def enter(lstm, inputs):
    """Forward: nothing. Backward: the sum of the gradients of all ranks' stripes."""
    same = DTensor.from_local(inputs[0], mesh, [Replicate()])
    return same.to_local(grad_placements=[Partial()])


def leave(lstm, inputs, result):
    """Forward: the outputs of all ranks' stripes side by side. Backward: each takes its part."""
    output, state = result
    return DTensor.from_local(output, mesh, [Shard(-1)]).full_tensor(), state


# 2. Model
model = models.build(args)
for layer in model[1:-1]:
    layer.lstm.keep(range(rank * stripes, (rank + 1) * stripes))
    layer.lstm.register_forward_pre_hook(enter)
    layer.lstm.register_forward_hook(leave)
model = model.to(device)

# 3. Data
# all ranks train on all samples, together
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
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
