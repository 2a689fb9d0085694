"""python src/_train_gpu.py --steps 20 --global-batch 32

One process trains on one GPU: model and batch are moved to it. Without a GPU it stays on the CPU.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse()
# The device of this rank: its GPU, or the CPU.
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
# Moves the parameters to the device, before the optimizer gets them or creates its state.
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        # Moves the batch to where the model is: an operation needs its tensors on one device.
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
