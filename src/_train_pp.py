"""torchrun --standalone --nproc-per-node 4 src/_train_pp.py --schedule 1f1b --micro-batches 8

Pipeline parallelism: each rank holds a part of the layers, micro-batches flow through all of them.
"""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from bootcamp.train import checkpoint, config, data, models, optimizers, pipeline_stages, record

# Flags for schedule and micro-batches; all ranks are in one pipeline.
args, context = config.parse(own_flags=pipeline_stages.FLAGS, mesh=("pipeline",))
device = torch.device(context.device)
# Refuses numbers that the schedule cannot do, before anything is built.
pipeline_stages.check(context)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
# The numbers of the stages that the schedule gives this rank: one, or two.
mine = pipeline_stages.stages_of_rank(args.schedule, rank, world)
count = len(mine) * world
parts = pipeline_stages.cut(models.build(args), count)
stages = [PipelineStage(parts[i].to(device), i, count, device) for i in mine]
model = pipeline_stages.join(parts[i] for i in mine)
# Frees the stages of the other ranks.
del parts
first_here, last_here = 0 in mine, count - 1 in mine

# 3. Data
# All ranks draw the same batch: one pipeline trains it together.
batches = data.Batches(args, 0, 1)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
# Records every forward and backward pass, for the lesson's pictures.
pipeline_stages.record_actions(context.run_dir, rank, stages)
# What ranks without the last stage contribute to the loss.
zero = next(model.parameters()).new_zeros(())
schedule_class = get_schedule_class(pipeline_stages.NAMES_IN_TORCH[args.schedule])
# A schedule for one stage on each rank takes this stage, the others take a list.
stage_or_stages = stages[0] if len(stages) == 1 else stages
schedule = schedule_class(stage_or_stages, args.micro_batches, loss_fn=models.loss)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        # Only the first stage reads the inputs.
        stage_inputs = (inputs,) if first_here else ()
        # The schedule appends the loss of each micro-batch.
        losses = []
        if last_here:
            # All forward and backward passes of the step, in the schedule's order.
            schedule.step(*stage_inputs, target=targets, losses=losses, return_outputs=False)
        else:
            # The same step where there is no loss: it computes, sends and receives.
            schedule.step(*stage_inputs)
        optimizer.step()
    # The mean over the micro-batches; 0 on ranks without the last stage.
    mean_loss = sum(losses, zero).detach() / args.micro_batches
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
