"""horovodrun --gloo -np 2 python src/snippets/horovod_accumulate.py --micro-batches 4

Gradient accumulation with Horovod: one all-reduce of the gradients for several backward passes.
"""

from functools import partial

import horovod.torch as hvd
import torch

from bootcamp.train import config, data, models, optimizers, record

own_flags = {"--micro-batches": {"type": int, "default": 4}}
args, context = config.parse(("auto", "cpu", "cuda") if hvd.nccl_built() else ("cpu",), own_flags)
device = torch.device(context.device)

# 1. Processes
hvd.init()
rank, world = hvd.rank(), hvd.size()

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
passes = {"backward_passes_per_step": args.micro_batches}
optimizer = optimizers.build(args, model.parameters())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **passes)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device).chunk(args.micro_batches) for tensor in batches(step))
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for micro in range(args.micro_batches):
            micro_loss = models.loss(model(inputs[micro]), targets[micro])
            (micro_loss / args.micro_batches).backward()
            loss += micro_loss.detach() / args.micro_batches
        optimizer.step()
    average = hvd.allreduce_async_(loss, name="mean_loss")
    run.loss(loss, partial(hvd.synchronize, average))
run.finish()
hvd.shutdown()
