"""torchrun --standalone --nproc-per-node 4 src/_train_ddp_options.py --steps 20 --hook bf16

DDP's options: how gradients are put into buckets, and in which form they travel.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record


def bf16_compress(state, bucket):
    """Average a bucket in bfloat16. DDP's own bf16 hook asks for NCCL, this one runs on gloo."""
    # Halves the bytes, and divides first, so that the sum is a mean.
    half = bucket.buffer().bfloat16() / dist.get_world_size()
    # Starts the all-reduce and goes on: the backward need not wait for it.
    summed = dist.all_reduce(half, async_op=True).get_future()
    # When the sum is there it goes back into the bucket, in the bucket's own format.
    return summed.then(lambda done: bucket.buffer().copy_(done.value()[0]))


HOOKS = {
    # As they are: what DDP does without a hook.
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": bf16_compress,
    "powersgd": powerSGD_hook,
}

args, context = config.parse(
    own_flags={
        "--hook": {"default": "none", "choices": HOOKS},
        "--powersgd-rank": {"type": int, "default": 1},
        "--bucket-mb": {"type": float, "default": 25.0},
        "--bucket-view": {"action": "store_true"},
        "--static-graph": {"action": "store_true"},
    }
)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
model = DistributedDataParallel(
    model,
    # Small buckets leave early and cost more calls, large ones the other way round.
    bucket_cap_mb=args.bucket_mb,
    gradient_as_bucket_view=args.bucket_view,
    static_graph=args.static_graph,
)
# What PowerSGD remembers from step to step; the first two steps are averaged plainly.
powersgd = PowerSGDState(None, args.powersgd_rank, start_powerSGD_iter=2)
# DDP calls the hook for each full bucket, in place of its own all-reduce.
model.register_comm_hook(powersgd if args.hook == "powersgd" else None, HOOKS[args.hook])

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
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
