"""torchrun --standalone --nproc-per-node 4 src/_train_accelerate.py --steps 20 --global-batch 32

The same training in Accelerate: it prepares the model and the optimizer, the loop stays here.
"""

import torch
from accelerate import Accelerator

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse()
device = torch.device(context.device)

# 1. Processes
# Joins the process group, as torchrun's environment variables say.
accelerator = Accelerator(cpu=device.type == "cpu")
# The same two numbers, from Accelerate.
rank, world = accelerator.process_index, accelerator.num_processes

# 2. Model
model = models.build(args).to(device)
# Wraps the model in DDP.
model = accelerator.prepare(model)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
# Wraps the optimizer too, for mixed precision and accumulation.
optimizer = accelerator.prepare(optimizer)
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        # `loss.backward()` here; with fp16 it would scale the loss as well.
        accelerator.backward(loss)
        optimizer.step()
    # The mean of the ranks' losses, for the record.
    run.loss(accelerator.reduce(loss.detach(), reduction="mean"))
    checkpoint.save(context, step, model, optimizer)
run.finish()
# Leaves the process group when all is done.
accelerator.end_training()
