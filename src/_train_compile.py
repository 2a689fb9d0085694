"""python src/_train_compile.py --steps 20 --global-batch 32 --backend inductor

torch.compile: the first step records the model's operators as a graph, from which the backend makes
fewer, fused kernels (Ansel et al., PyTorch 2, ASPLOS 2024). `aot_eager` records and fuses nothing.
"""

import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# The first writes fused kernels; the second only records, and needs no compiler.
BACKENDS = ("inductor", "aot_eager")
FLAGS = {"--backend": {"default": "inductor", "choices": BACKENDS}}

args, context = config.parse(own_flags=FLAGS)
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args).to(device)
# Compiles at the first call, and shares the parameters that the optimizer and the record have.
compiled = torch.compile(model, backend=args.backend)

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
        # The forward pass through the graph, which has its own backward pass.
        loss = models.loss(compiled(inputs), targets)
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
