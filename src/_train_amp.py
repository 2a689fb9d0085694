"""python src/_train_amp.py --steps 20 --global-batch 32 --autocast bfloat16

Automatic mixed precision: parameters stay in float32, matrix products run in 16 bits.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

FLAGS = {"--autocast": {"default": "bfloat16", "choices": ("bfloat16", "float16")}}

args, context = config.parse(own_flags=FLAGS)
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
scaler = torch.amp.GradScaler(device.type, enabled=args.autocast == "float16")
first = checkpoint.load(context, model, optimizer, scaler=scaler)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=getattr(torch, args.autocast)):
            loss = models.loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer, scaler=scaler)
run.finish()
