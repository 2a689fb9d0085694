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

from bootcamp.train import checkpoint, config, data, models, optimizers, record, tensor_flags

args, context = config.parse(own_flags=tensor_flags.FLAGS, mesh=("tensor",))
tensor_flags.check(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)

# 2. Model
with torch.device("meta"):  # shapes, and no memory
    model = models.build(args)
between = Shard(1) if args.sequence_parallel else Replicate()  # blocks: dimension 1 is the text
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan["attention"] = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
plan["attention.out"] = RowwiseParallel(output_layouts=between)
plan["up"] = ColwiseParallel(input_layouts=between)
plan["down"] = RowwiseParallel(output_layouts=between)
scores = {"output_layouts": Shard(-1), "use_local_output": False}
around = {"head.scores": ColwiseParallel(input_layouts=between, **scores)}
if args.sequence_parallel:
    plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    around["embedding"] = PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Shard(1)
    )
    around["head.norm"] = SequenceParallel()
for block in model[1:-1]:
    parallelize_module(block, mesh["tensor"], plan)
parallelize_module(model, mesh["tensor"], around)
model.to_empty(device=device)  # memory for this rank's part
models.initialise(model, args)

# 3. Data
# all ranks train the whole batch, together
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
        with loss_parallel():
            loss = models.loss(model(inputs), targets)
            loss.backward()
        optimizer.step()
    run.loss(loss.detach().full_tensor())
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
