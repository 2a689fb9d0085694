"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_elastic.py --steps 20

DDP on as many ranks as there are: with fewer of them, each computes more micro-batches of a step.
On one host or two, with `--save` and `--resume` on a disk that both share, on each of them:
torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-id ID --rdzv-backend c10d ...
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse(own_flags={"--micro-batch": {"type": int, "default": 4}})
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
share = args.global_batch // world

# 2. Model
model = models.build(args).to(device)
model = DistributedDataParallel(model)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device).split(args.micro_batch) for tensor in batches(step))
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for micro in range(len(inputs)):
            last = micro == len(inputs) - 1
            synchronise = nullcontext() if last else model.no_sync()
            with synchronise:
                micro_loss = models.loss(model(inputs[micro]), targets[micro])
                micro_loss = micro_loss * len(inputs[micro]) / share
                micro_loss.backward()
            loss += micro_loss.detach()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
