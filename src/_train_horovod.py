"""horovodrun --gloo -np 4 python src/_train_horovod.py --steps 20 --global-batch 32

Horovod: every rank trains its share of the batch, its optimizer averages the gradients.
"""

from functools import partial

import horovod.torch as hvd
import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# A Horovod that was built without NCCL takes no tensors on GPUs.
args, context = config.parse(devices=("auto", "cpu", "cuda") if hvd.nccl_built() else ("cpu",))
device = torch.device(context.device)

# 1. Processes
# Joins the ranks that horovodrun has started; there is no back end or timeout to give.
hvd.init()
# The same two numbers, from Horovod.
rank, world = hvd.rank(), hvd.size()

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
# Averages the gradients: the optimizer is wrapped here, not the model.
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
first = checkpoint.load(context, model, optimizer)
# Gives all ranks rank 0's parameters; DDP does it by itself, here it is your line.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# A new optimizer has no state, and to make some Horovod would take a step.
if optimizer.state:
    # After a checkpoint was loaded, all ranks get rank 0's state.
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    # This rank's loss, without what belongs to the backward.
    mean_loss = loss.detach()
    # Begins to put the mean over all ranks in its place: Horovod's allreduce divides by itself.
    average = hvd.allreduce_async_(mean_loss, name="mean_loss")
    # Records the loss of the global batch, once the all-reduce is done.
    run.loss(mean_loss, partial(hvd.synchronize, average))
    checkpoint.save(context, step, model, optimizer)
run.finish()
# Leaves Horovod when all is done.
hvd.shutdown()
