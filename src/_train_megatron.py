"""torchrun --standalone --nproc-per-node 4 src/_train_megatron.py --steps 10

Tensor parallelism with Megatron-core: its layers take the place of the model's linear ones.
"""

from functools import partial

import torch
import torch.distributed as dist
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    vocab_parallel_cross_entropy,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# Without the flag for sequence parallelism, which Megatron has on GPUs only.
args, context = config.parse(mesh=("tensor",))
flags.check_heads(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
# Megatron makes process groups of its own: here one of all ranks.
parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)

# 2. Model
model = models.build(args)
settings = ModelParallelConfig(
    tensor_model_parallel_size=world,
    params_dtype=getattr(torch, args.dtype),
    # Each rank fills the whole matrix on the CPU and keeps its part, however many ranks there are.
    use_cpu_initialization=True,
)
# By columns; the outputs stay split.
column = partial(ColumnParallelLinear, gather_output=False)
# By rows; the inputs come split, and the bias is added after the sum.
row = partial(RowParallelLinear, input_is_parallel=True, skip_bias_add=False)
# Query, key and value don't add up their input's gradients each: it is done once, below.
head_column = partial(column, disable_grad_reduce=True)
plan = {f"attention.{name}": head_column for name in ("query", "key", "value")}
plan |= {"attention.out": row, "up": column, "down": row, "scores": column}
for part in model[1:]:
    # A list, because layers are replaced on the way.
    for name, linear in list(part.named_modules()):
        if name in plan:
            split = plan[name](
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                # Begins with the parameters that are there: so the training is the baseline's.
                init_method=lambda weight, start=linear.weight.data: weight.copy_(start),
                config=settings,
            )
            # Megatron's layers return output and bias; the model wants the output.
            split.register_forward_hook(lambda layer, inputs, result: result[0])
            part.set_submodule(name, split)
for block in model[1:-1]:
    # One all-reduce of the gradient in the backward serves query, key and value.
    block.attention.register_forward_pre_hook(
        lambda attention, inputs: copy_to_tensor_model_parallel_region(*inputs)
    )
# Now that all layers are in place.
model.to(device)
# The record and checkpoints ask where a rank's part of a split parameter belongs.
for value in model.parameters():
    if getattr(value, "tensor_model_parallel", False):
        value.dtensor = DTensor.from_local(value.data, mesh, [Shard(value.partition_dim)])

# 3. Data
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
        # The loss from split scores, one for each byte, then their mean.
        loss = vocab_parallel_cross_entropy(model(inputs), targets).mean()
        # Nothing has to be around it: Megatron's loss has a backward of its own.
        loss.backward()
        optimizer.step()
    # All ranks have the same loss, as a plain tensor.
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
