"""horovodrun --gloo -np 2 python src/snippets/horovod_scaled.py --optimizer sgd

Horovod as older programs use it: a learning rate that grows with the ranks, and clipped gradients.
"""

from functools import partial

import horovod.torch as hvd
import torch

from bootcamp.train import config, data, models, optimizers, record

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
for group in optimizer.param_groups:
    group["lr"] *= hvd.size()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.synchronize()  # the means have to be there before they are clipped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():  # else step() averages a second time
            optimizer.step()
    mean_loss = loss.detach()
    average = hvd.allreduce_async_(mean_loss, name="mean_loss")
    run.loss(mean_loss, partial(hvd.synchronize, average))
run.finish()
hvd.shutdown()
