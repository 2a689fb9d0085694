"""python src/snippets/amp_from_apex.py --optimizer sgd

The counterpart of apex_loop.py without Apex: torch.autocast, and GradScaler for the loss scale.
"""

import torch

from bootcamp.train import config, data, models, optimizers, record

args, context = config.parse()
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
scaler = torch.amp.GradScaler(device.type)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = models.loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # scale_loss did it at the end of its block
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    run.loss(loss.detach())
run.finish()
