"""torchrun --standalone --nproc-per-node 4 src/_train_fsdp_pp.py --mesh 2x2

Two dimensions: pipelines side by side, and each stage is sharded over the pipelines (FSDP2).
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from bootcamp.train import checkpoint, config, data, models, optimizers, pipeline_stages, record

args, context = config.parse(own_flags=pipeline_stages.FLAGS, mesh=("data", "pipeline"))
device = torch.device(context.device)
pipeline_stages.check(context)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
copies, pipe = mesh["data"], mesh["pipeline"]

# 2. Model
mine = pipeline_stages.stages_of_rank(args.schedule, pipe.get_local_rank(), pipe.size())
count = len(mine) * pipe.size()
parts = pipeline_stages.cut(models.build(args), count)
# Each stage of this rank, before the pipeline gets it.
for stage in (parts[i].to(device) for i in mine):
    for part in stage:
        # Shards over the other pipelines; False: gathered once, not for each micro-batch.
        fully_shard(part, mesh=copies, reshard_after_forward=False)
    # So the schedule knows: it reduces gradients after the last micro-batch only.
    fully_shard(stage, mesh=copies, reshard_after_forward=False)
# The pipeline hands on activations, and need not know that parameters are sharded.
stages = [PipelineStage(parts[i], i, count, device, group=pipe.get_group()) for i in mine]
model = pipeline_stages.join(parts[i] for i in mine)
del parts
first_here, last_here = 0 in mine, count - 1 in mine

# 3. Data
batches = data.Batches(args, copies.get_local_rank(), copies.size())

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
pipeline_stages.record_actions(context.run_dir, rank, stages)
# A sharded parameter would make a DTensor of it, which the all-reduce below does not take.
zero = torch.zeros((), dtype=getattr(torch, args.dtype), device=device)
schedule_class = get_schedule_class(pipeline_stages.NAMES_IN_TORCH[args.schedule])
stage_or_stages = stages[0] if len(stages) == 1 else stages
schedule = schedule_class(stage_or_stages, args.micro_batches, loss_fn=models.loss)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        stage_inputs = (inputs,) if first_here else ()
        losses = []
        if last_here:
            schedule.step(*stage_inputs, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*stage_inputs)
        optimizer.step()
    mean_loss = sum(losses, zero).detach() / args.micro_batches
    mean_loss /= copies.size()
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
