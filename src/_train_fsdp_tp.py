"""torchrun --standalone --nproc-per-node 4 src/_train_fsdp_tp.py --mesh 2x2

Two dimensions: blocks split over the ranks of a row (tensor), and sharded over the rows (FSDP2).
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# Two axes: `--mesh 2x2` is two rows of two ranks.
args, context = config.parse(own_flags=flags.SEQUENCE_PARALLEL, mesh=("data", "tensor"))
flags.check_heads(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
# Which row this rank is in, and of how many.
row, rows = mesh["data"].get_local_rank(), mesh["data"].size()

# 2. Model
with torch.device("meta"):
    model = models.build(args)
layout = Shard(1) if args.sequence_parallel else Replicate()
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan["attention"] = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate())
plan["attention.out"] = RowwiseParallel(output_layouts=layout)
plan["up"] = ColwiseParallel(input_layouts=layout)
plan["down"] = RowwiseParallel(output_layouts=layout)
embedding_plan = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=layout)
scores = ColwiseParallel(input_layouts=layout, output_layouts=Shard(-1), use_local_output=False)
head_plan = {"scores": scores}
if args.sequence_parallel:
    plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    head_plan |= {"norm": SequenceParallel()}
end_plans = {"embedding": embedding_plan, "head": head_plan}
for name, part in model.named_children():
    parallelize_module(part, mesh["tensor"], end_plans.get(name, plan))
for block in model[1:-1]:
    # What tensor parallelism has split is sharded over the rows too, and gathered before use.
    fully_shard(block, mesh=mesh["data"])
# The same for what is in no block: embedding and head.
fully_shard(model, mesh=mesh["data"])
model.to_empty(device=device)
models.initialise(model, args)

# 3. Data
# The ranks of a row train one share of the batch, together.
batches = data.Batches(args, row, rows)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        with loss_parallel():
            loss = models.loss(model(inputs), targets)
            loss.backward()
        optimizer.step()
    # This row's part of the mean over the global batch.
    mean_loss = loss.detach().full_tensor() / rows
    # Adds up the rows' parts of the loss, for the record, while training goes on.
    reduced = dist.all_reduce(mean_loss, group=mesh["data"].get_group(), async_op=True)
    # Records the loss of the global batch rather than that of one row's share.
    run.loss(mean_loss, reduced)
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
