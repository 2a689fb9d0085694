"""torchrun --standalone --nproc-per-node 4 src/_train_tp.py --sequence-parallel

Tensor parallelism: the matrices of each block are split over the ranks, which all see the batch.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
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

args, context = config.parse(own_flags=flags.SEQUENCE_PARALLEL, mesh=("tensor",))
# Refuses a model whose heads do not divide over the ranks.
flags.check_heads(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
# Makes a process group for each axis of the mesh, by name.
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)

# 2. Model
# What is made in here has shapes and no memory.
with torch.device("meta"):
    # All layers: with numbers, a model that needs several ranks would fit on none of them.
    model = models.build(args)
# The layout between the split parts: complete on each rank, or split along the text (1).
layout = Shard(1) if args.sequence_parallel else Replicate()
# Split by columns: each rank gets some of the heads.
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
# Every head needs all of the text, so the attention's input is gathered if it is split.
plan["attention"] = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate())
# Split by rows: takes the heads as they are, and adds up the ranks' parts of the sum.
plan["attention.out"] = RowwiseParallel(output_layouts=layout)
# The MLP's first matrix by columns.
plan["up"] = ColwiseParallel(input_layouts=layout)
# Its second by rows, so nothing has to travel between the two.
plan["down"] = RowwiseParallel(output_layouts=layout)
# From all of the text on each rank to the layout of the blocks.
embedding_plan = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=layout)
# By columns: each rank scores some of the byte values, and no rank gathers all scores.
scores = ColwiseParallel(input_layouts=layout, output_layouts=Shard(-1), use_local_output=False)
head_plan = {"scores": scores}
if args.sequence_parallel:
    # A norm sees a part of the text; as a DTensor, its gradient is known to be a part of a sum.
    plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    head_plan |= {"norm": SequenceParallel()}
end_plans = {"embedding": embedding_plan, "head": head_plan}
for name, part in model.named_children():
    # Splits the part's matrices as planned; PyTorch then calls the collectives.
    parallelize_module(part, mesh["tensor"], end_plans.get(name, plan))
# Gives memory to what is left on this rank, its parts; what stands in it is arbitrary.
model.to_empty(device=device)
# Draws one stage after another as the baseline does, and keeps this rank's part of each.
models.initialise(model, args)

# 3. Data
# All ranks get the same batch: they train one model together.
batches = data.Batches(args, 0, 1)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        # The loss from split scores: only maxima, sums and the targets' scores travel.
        with loss_parallel():
            # Forward pass and loss, as ever; within `loss_parallel` no rank gathers the scores.
            loss = models.loss(model(inputs), targets)
            # Stands within it too, since a split loss has a backward pass of its own.
            loss.backward()
        optimizer.step()
    # All ranks have the same loss; `full_tensor` makes a plain tensor of it.
    run.loss(loss.detach().full_tensor())
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
