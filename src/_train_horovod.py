"""horovodrun --gloo -np 4 python src/_train_horovod.py --steps 20 --global-batch 32

Horovod: every rank trains its share of the batch, its optimizer averages the gradients.
"""

from functools import partial

import horovod.torch as hvd
import torch

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse(devices=("auto", "cpu", "cuda") if hvd.nccl_built() else ("cpu",))
device = torch.device(context.device)

# 1. Processes
hvd.init()
rank, world = hvd.rank(), hvd.size()

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
first = checkpoint.load(context, model, optimizer)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
if optimizer.state:  # a new optimizer has none, and Horovod would take a step to make some
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
    mean_loss = loss.detach()
    average = hvd.allreduce_async_(mean_loss, name="mean_loss")
    run.loss(mean_loss, partial(hvd.synchronize, average))
    checkpoint.save(context, step, model, optimizer)
run.finish()
hvd.shutdown()
