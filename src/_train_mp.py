"""python src/_train_mp.py --steps 20 --global-batch 32

Model parallelism by layers: one process, half of the layers on one device, half on another.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# Asks for two devices: two GPUs, a GPU and the CPU, or twice the CPU.
args, context = config.parse(devices_per_rank=2, mixed_devices=True)
# One for the first half of the model, one for the second.
device, second_device = (torch.device(name) for name in context.devices)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args)
half = len(model) // 2
# A slice holds the same layers, so this moves the model's own first half.
model[:half].to(device)
model[half:].to(second_device)
# Before the first layer behind the cut, the activations move; autograd moves gradients back.
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
        # The outputs come from the second device, so the targets go there.
        loss = models.loss(model(inputs), targets.to(second_device))
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
