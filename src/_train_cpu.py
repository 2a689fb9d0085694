"""python src/_train_cpu.py --steps 20 --global-batch 32

The baseline: one process trains on the CPU. Every other script is held against its result.
"""

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse(devices=("cpu",))

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = batches(step)
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
