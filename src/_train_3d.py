"""torchrun --standalone --nproc-per-node 8 src/_train_3d.py --mesh 2x2x2

Three dimensions: pipelines side by side (data), in which each stage's matrices are split (tensor).
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from bootcamp.train import checkpoint, config, data, models, optimizers, pipeline_stages, record

# Three axes: ranks of a tensor group have successive numbers, so they are on one host.
args, context = config.parse(own_flags=pipeline_stages.FLAGS, mesh=("pipeline", "data", "tensor"))
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
stages = [
    PipelineStage(parts[i].to(device), i, count, device, group=pipe.get_group()) for i in mine
]
model = pipeline_stages.join(parts[i] for i in mine)
del parts
# Sequence parallelism: between blocks a rank has its part of the text, and a stage sends only that.
layout = Shard(1)
# From here on the plan of tensor parallelism, as in `tp`.
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan["attention"] = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate())
plan["attention.out"] = RowwiseParallel(output_layouts=layout)
plan["up"] = ColwiseParallel(input_layouts=layout)
plan["down"] = RowwiseParallel(output_layouts=layout)
# A norm sees a part of the text; as a DTensor, its gradient is known to be a part of a sum.
plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
embedding_plan = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=layout)
# All scores on each tensor rank: the schedule computes the loss, and expects plain tensors.
scores = ColwiseParallel(input_layouts=layout, output_layouts=Replicate())
head_plan = {"norm": SequenceParallel(), "scores": scores}
end_plans = {"embedding": embedding_plan, "head": head_plan}
for name, part in model.named_children():
    # Only the parts that this rank's stages have: the embedding, blocks, the head.
    parallelize_module(part, mesh["tensor"], end_plans.get(name, plan))
first_here, last_here = 0 in mine, count - 1 in mine

# 3. Data
batches = data.Batches(args, copies.get_local_rank(), copies.size())

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
pipeline_stages.record_actions(context.run_dir, rank, stages)
# A split parameter would make a DTensor of it, which the all-reduce below does not take.
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
        for parameter in model.parameters():
            # After the schedule's step, when the gradients of all micro-batches have been added up.
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                # This rank's part: the ranks of the other copies have the same part.
                gradient = gradient.to_local()
            # Along the data axis alone: other axes hold other parameters.
            dist.all_reduce(gradient, group=copies.get_group())
            # Makes the sum a mean over the copies.
            gradient /= copies.size()
        optimizer.step()
    mean_loss = sum(losses, zero).detach() / args.micro_batches
    # The ranks of a tensor group have the same loss, so it is added up once for each.
    mean_loss /= copies.size() * mesh["tensor"].size()
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
