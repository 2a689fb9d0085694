"""torchrun --standalone --nproc-per-node 4 src/_train_ddp_mp.py --steps 20 --global-batch 32

Data parallel over processes, each of which has its model on two devices.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# Two devices for each rank, of one kind: DDP refuses a model on two kinds.
args, context = config.parse(devices_per_rank=2)
device, second_device = (torch.device(name) for name in context.devices)

# 1. Processes
# Waits until all ranks have come; `timeout` is how long a collective may wait for one of them.
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args)
half = len(model) // 2
model[:half].to(device)
model[half:].to(second_device)
model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))
# None: the model has several devices and moves its inputs itself.
model = DistributedDataParallel(model, device_ids=None)

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
        loss = models.loss(model(inputs), targets.to(second_device))
        loss.backward()
        optimizer.step()
    mean_loss = loss.detach() / world
    # Adds up the ranks' parts for the record, while training goes on (`async_op`).
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
# Leaves the group when all is done.
dist.destroy_process_group()
