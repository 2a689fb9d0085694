"""python src/_train_amp.py --steps 20 --global-batch 32 --autocast bfloat16

Automatic mixed precision: parameters stay in float32, matrix products run in 16 bits.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# The two 16-bit formats: bf16 has float32's range, fp16 has finer steps and a small range.
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
# Keeps small gradients from becoming 0 in fp16; with bf16 it is off and passes all on.
scaler = torch.amp.GradScaler(device.type, enabled=args.autocast == "float16")
# The scale is part of the training's state, so it is loaded too.
first = checkpoint.load(context, model, optimizer, scaler=scaler)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        # Within it each operation gets its format: matrix products 16 bits, the loss float32.
        with torch.autocast(device.type, dtype=getattr(torch, args.autocast)):
            # The backward, outside, uses the formats of the forward by itself.
            loss = models.loss(model(inputs), targets)
        # Multiplies the loss, and so each gradient, so that fp16 does not round them to 0.
        scaler.scale(loss).backward()
        # Divides the gradients again; if one is infinite or no number, it leaves the step out.
        scaler.step(optimizer)
        # Makes the scale smaller after a step that was left out, and larger after many good ones.
        scaler.update()
    run.loss(loss.detach())
    # Saves the scale with the rest.
    checkpoint.save(context, step, model, optimizer, scaler=scaler)
run.finish()
