"""python src/snippets/apex_loop.py --optimizer sgd

Mixed precision as older programs have it: NVIDIA's Apex, level O1, and gradients that are clipped.
"""

import torch
from apex import amp

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
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
        optimizer.step()
    run.loss(loss.detach())
run.finish()
