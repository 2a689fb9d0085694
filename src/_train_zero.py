"""torchrun --standalone --nproc-per-node 4 src/_train_zero.py --stage 3

ZeRO with DeepSpeed: what DDP keeps on every rank is sharded, more with each ZeRO stage. Stage 1
shards the optimizer's state, stage 2 the gradients too, stage 3 the parameters too.
"""

import os

import torch
import torch.distributed as dist

from bootcamp.train import checkpoint, config, data, models, optimizers, record, sharding_flags

args, context = config.parse(devices=("auto", "cpu", "cuda"), own_flags=sharding_flags.STAGE_FLAGS)
device = torch.device(context.device)
os.environ["DS_ACCELERATOR"] = device.type  # else DeepSpeed takes a GPU wherever there is one
import deepspeed  # noqa: E402

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, for minutes

# 1. Processes
deepspeed.init_distributed(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
settings = {
    "train_batch_size": args.global_batch,
    "zero_optimization": {
        "stage": args.stage,
        "reduce_bucket_size": 2**20,  # elements, as in all that follows
        "allgather_bucket_size": 2**20,
        "overlap_comm": False,
        "stage3_param_persistence_threshold": 0,  # shard small parameters too
    },
    "gradient_clipping": 0.0,  # left out, gradients are clipped to a norm of 1
    "zero_allow_untested_optimizer": True,
}

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
model, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        loss = models.loss(model(inputs), targets)
        model.backward(loss)
        model.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
