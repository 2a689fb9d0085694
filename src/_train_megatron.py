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

from bootcamp.train import checkpoint, config, data, models, optimizers, record, tensor_flags

args, context = config.parse(mesh=("tensor",))
tensor_flags.check(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)

# 2. Model
model = models.build(args)
settings = ModelParallelConfig(
    tensor_model_parallel_size=world,
    params_dtype=getattr(torch, args.dtype),
    use_cpu_initialization=True,
)
column = partial(ColumnParallelLinear, gather_output=False)
row = partial(RowParallelLinear, input_is_parallel=True, skip_bias_add=False)
plan = {f"attention.{name}": column for name in ("query", "key", "value")}
plan = {name: partial(layer, disable_grad_reduce=True) for name, layer in plan.items()}
plan |= {"attention.out": row, "up": column, "down": row, "scores": column}
for part in model[1:]:
    for name, whole in list(part.named_modules()):
        if name in plan:
            split = plan[name](
                whole.in_features,
                whole.out_features,
                bias=whole.bias is not None,
                init_method=partial(torch.Tensor.copy_, other=whole.weight.data),
                config=settings,
            )
            split.register_forward_hook(lambda layer, given, result: result[0])  # without its bias
            part.set_submodule(name, split)
for block in model[1:-1]:  # query, key and value share one all-reduce of their input's gradient
    block.attention.register_forward_pre_hook(
        lambda attention, given: copy_to_tensor_model_parallel_region(*given)
    )
model.to(device)
for parameter in model.parameters():  # for the record and for checkpoints
    if getattr(parameter, "tensor_model_parallel", False):
        cut = [Shard(parameter.partition_dim)]
        parameter.dtensor = DTensor.from_local(parameter.data, mesh, cut)

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
        loss = vocab_parallel_cross_entropy(model(inputs), targets).mean()
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
