"""python src/_train_activation_checkpointing.py --steps 20 --global-batch 32 --keep inputs

Activation checkpointing: a block keeps its input only, or its matrix products only, and computes
the rest again in the backward (Chen et al., arXiv:1604.06174).
"""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint as recompute
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# PyTorch's own names of a matrix product, without and with a bias.
MATRIX_PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
KEEP = {
    # Keeps nothing but a block's input.
    "inputs": noop_context_fn,
    # Keeps the results of the matrix products too: they are what costs time to compute again.
    "products": partial(create_selective_checkpoint_contexts, MATRIX_PRODUCTS),
}

args, context = config.parse(own_flags={"--keep": {"default": "inputs", "choices": KEEP}})
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args).to(device)
# Every block; the embedding and the head stay as they are.
for block in model[1:-1]:
    # The old forward runs inside the new one, now and again in the backward.
    block.forward = partial(
        recompute, block.forward, use_reentrant=False, context_fn=KEEP[args.keep]
    )

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
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
