"""torchrun --standalone --nproc-per-node 4 src/_train_zero.py --stage 3

ZeRO with DeepSpeed: what DDP keeps on every rank is sharded, more with each ZeRO stage. Stage 1
shards the optimizer's state, stage 2 the gradients too, stage 3 the parameters too.
"""

import os

import torch
import torch.distributed as dist

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# A flag gives the ZeRO stage, what is sharded; `meta`, the rehearsal, is not among devices.
args, context = config.parse(devices=("auto", "cpu", "cuda"), own_flags=flags.ZERO_STAGE)
device = torch.device(context.device)
# Else DeepSpeed takes a GPU wherever there is one.
os.environ["DS_ACCELERATOR"] = device.type
import deepspeed  # noqa: E402

# Keeps it from compiling an extension for CPU ranks, which would take minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

# 1. Processes
# Joins the process group, of torch.distributed here too.
deepspeed.init_distributed(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
settings = {
    "train_batch_size": args.global_batch,
    "zero_optimization": {
        # 1: optimizer state; 2: gradients too; 3: parameters too.
        "stage": args.stage,
        # Numbers of elements, not bytes.
        "reduce_bucket_size": 2**20,
        "allgather_bucket_size": 2**20,
        "overlap_comm": False,
        # Stage 3 would leave small parameters unsharded: shard them too.
        "stage3_param_persistence_threshold": 0,
    },
    # Left out, gradients would be clipped to a norm of 1, which is another training.
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,
}

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
# Wraps both into an engine, which owns backward pass, reduction, step and zeroing of gradients.
model, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        loss = models.loss(model(inputs), targets)
        # The engine's backward pass, which also averages the gradients over the ranks.
        model.backward(loss)
        # The engine's step: it updates what this rank owns, and sets gradients to zero.
        model.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
