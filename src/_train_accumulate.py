"""python src/_train_accumulate.py --steps 20 --global-batch 32 --micro-batches 4

Gradient accumulation: the batch goes through in parts, and one optimizer step uses their sum.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# A flag says into how many parts the batch is cut.
args, context = config.parse(own_flags={"--micro-batches": {"type": int, "default": 4}})
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
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
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        mean_loss = torch.zeros((), device=device, dtype=getattr(torch, args.dtype))
        parts = zip(*(whole.chunk(args.micro_batches) for whole in (inputs, targets)), strict=True)
        # One part after another: only one part's activations are alive at a time.
        for part_inputs, part_targets in parts:
            # Each part counts with its share of the samples, so the sum is the batch's mean.
            loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)
            # Adds this part's gradients to those of the parts before it.
            loss.backward()
            # Adds the loss without what belongs to its backward, so that it can be freed.
            mean_loss += loss.detach()
        optimizer.step()
    # Records the mean over the batch, not the loss of the last part.
    run.loss(mean_loss)
    checkpoint.save(context, step, model, optimizer)
run.finish()
