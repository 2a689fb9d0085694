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
del parts  # those of the other ranks
between = Shard(1)  # from block to block and from stage to stage: dimension 1 is the text
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan["attention"] = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
plan["attention.out"] = RowwiseParallel(output_layouts=between)
plan["up"] = ColwiseParallel(input_layouts=between)
plan["down"] = RowwiseParallel(output_layouts=between)
plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
whole_text = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=between)
scores = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
ends = {"embedding": whole_text, "head": {"norm": SequenceParallel(), "scores": scores}}
for name, part in model.named_children():
    parallelize_module(part, mesh["tensor"], ends.get(name, plan))
first_here, last_here = 0 in mine, count - 1 in mine

# 3. Data
# one for each pipeline
batches = data.Batches(args, copies.get_local_rank(), copies.size())

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
pipeline_stages.record_actions(context.run_dir, rank, stages)
zero = torch.zeros((), dtype=getattr(torch, args.dtype), device=device)
schedule_class = get_schedule_class(pipeline_stages.SCHEDULES[args.schedule].name_in_torch)
whole = stages if pipeline_stages.SCHEDULES[args.schedule].chunks > 1 else stages[0]
schedule = schedule_class(whole, args.micro_batches, loss_fn=models.loss)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        given, losses = (inputs,) if first_here else (), []
        if last_here:
            schedule.step(*given, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*given)
        for parameter in model.parameters():  # complete only after the last micro-batch
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                gradient = gradient.to_local()
            dist.all_reduce(gradient, group=copies.get_group())
            gradient /= copies.size()
        optimizer.step()
    mean_loss = sum(losses, zero).detach() / args.micro_batches
    mean_loss /= copies.size() * mesh["tensor"].size()
    # only the ranks with the last stage have losses; those of a tensor group have the same
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
