"""python src/_train_cpu.py --steps 20 --global-batch 32

The baseline: one process trains on the CPU. Every other script is held against its result.
"""

# The course's helpers: flags, data, models, records; they hide nothing of the strategy.
from bootcamp.train import checkpoint, config, data, models, optimizers, record

# The flags, and what follows from them on this machine; this script trains on the CPU only.
args, context = config.parse(devices=("cpu",))

# 1. Processes
# One process: it is rank 0 of a world of 1.
rank, world = 0, 1

# 2. Model
# Builds the model on the CPU; the seed decides its parameters, so all runs begin alike.
model = models.build(args)

# 3. Data
# Deals out this rank's share of every global batch.
batches = data.Batches(args, rank, world)

# 4. Optimizer
# Gets the parameters that it is to change, so it comes after all that is done to the model.
optimizer = optimizers.build(args, model.parameters())
# The step to begin with: 0, or where a checkpoint named by `--resume` ended.
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
# Records what this rank does, and changes nothing of it.
run = record.Run(context, model, optimizer, batches, world)
# One round is one optimizer step.
for step in range(first, args.steps):
    # The record's clock runs for this block: the seconds of a step are those of the training alone.
    with run.step(step):
        # This rank's samples; the global batch depends on the seed and the step alone.
        inputs, targets = batches(step)
        # Clears the last step's gradients, since the backward adds to what is there.
        optimizer.zero_grad()
        # Forward: predictions, and their mean loss over the samples that went in.
        loss = models.loss(model(inputs), targets)
        # Backward: computes a gradient for each parameter and adds it to the one that is there.
        loss.backward()
        # Changes each parameter a little against its gradient.
        optimizer.step()
    # Hands the loss to the record; `detach` leaves behind what belongs to the backward.
    run.loss(loss.detach())
    # Writes a checkpoint from time to time, if `--save` asks for it.
    checkpoint.save(context, step, model, optimizer)
# Writes this rank's record, and on rank 0 the run's summary.
run.finish()
