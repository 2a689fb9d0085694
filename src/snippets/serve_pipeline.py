"""torchrun --standalone --nproc-per-node 2 src/snippets/serve_pipeline.py --micro-batches 4

One model over devices: each rank holds a part of the layers, requests flow through all of them.
"""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from bootcamp.train import config, data, models, pipeline_stages, record

flags = {"--micro-batches": pipeline_stages.FLAGS["--micro-batches"]}
args, context = config.parse(own_flags=flags, mesh=("pipeline",))
device = torch.device(context.device)
# forwards only: there are no backwards that another schedule would put in between
args.schedule = "gpipe"
pipeline_stages.check(context)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
parts = pipeline_stages.cut(models.build(args), world)
model = parts[rank].to(device).eval()
del parts  # those of the other ranks
stage = PipelineStage(model, rank, world, device)
first_here, last_here = rank == 0, rank == world - 1

# 3. Data
# a step is one batch of requests, and the pipeline answers all of it
batches = data.Batches(args, 0, 1)

# 4. Optimizer
# none: parameters stay as they are
optimizer = None

# 5. Serving loop
run = record.Run(context, model, optimizer, batches, world)
zero = next(model.parameters()).new_zeros(())
schedule = ScheduleGPipe(stage, args.micro_batches, loss_fn=models.loss)
for step in range(args.steps):
    with run.step(step), torch.inference_mode():
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        stage_inputs = (inputs,) if first_here else ()
        losses = []
        if last_here:
            schedule.eval(*stage_inputs, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.eval(*stage_inputs)
        mean_loss = sum(losses, zero) / args.micro_batches
        # the first rank could run ahead: a request is answered when the last one has its scores
        dist.all_reduce(mean_loss)
    run.loss(mean_loss)
run.finish()
dist.destroy_process_group()
