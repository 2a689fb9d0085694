"""python src/_train_mp.py --steps 20 --global-batch 32

Model parallelism by layers: one process, half of the layers on one device, half on another.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse(devices_per_rank=2, mixed_devices=True)
device, second_device = (torch.device(name) for name in context.devices)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args)
half = len(model) // 2
model[:half].to(device)
model[half:].to(second_device)
model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))

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
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
