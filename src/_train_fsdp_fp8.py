"""torchrun --standalone --nproc-per-node 4 src/_train_fsdp_fp8.py --steps 20 --global-batch 32

FSDP that gathers the blocks' matrices in 8 bits: each rank rounds its rows before they travel, so
forward and backward use rounded numbers. What the optimizer changes stays in full width.
The rows have to divide over the ranks, and one rank alone gathers nothing.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

args, context = config.parse(own_flags=flags.SHARDING)
# FSDP2 pads no rows of a matrix that says itself what is gathered.
flags.count_parts_of_rank(context, "gpt", "width")
device = torch.device(context.device)

# What FSDP2 makes parts and copies with; their results have to be gathered in 8 bits as well.
aten = torch.ops.aten
KEPT = (aten.detach, aten.view, aten.slice, aten.split, aten.new_zeros, aten.empty_like)


def to_fp8(matrix):
    """Return rows as bytes, since gloo sends no FP8, and the scale of each."""
    scales = matrix.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
    return (matrix / scales).to(torch.float8_e4m3fn).view(torch.uint8), scales


class GatheredIn8Bits(torch.Tensor):
    """A matrix, or rows of it, that FSDP2 gathers in 8 bits."""

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        """Apply an operation, and make what KEPT returns a tensor of this kind."""
        with no_dispatch():
            result = operation(*args, **kwargs or {})
            if operation.overloadpacket in KEPT:
                result = tree_map_only(torch.Tensor, lambda each: each.as_subclass(cls), result)
        return result

    def fsdp_pre_all_gather(self, mesh):
        """Return what travels: FSDP2 calls it with this rank's rows."""
        return to_fp8(self), None

    def fsdp_post_all_gather(self, gathered, metadata, dtype, *, out=None):
        """Return the matrix, and what FSDP2 frees after use; from then on it gives `out`."""
        rows, scales = gathered
        matrix = rows.view(torch.float8_e4m3fn).to(dtype) * scales
        if out is not None:
            out.data.copy_(matrix)
        return matrix, (matrix,)


# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, (world,))

# 2. Model
with torch.device("meta"):
    model = models.build(args)
# Embedding, head, biases and norms are few, and stay in full width.
for layer in model[1:-1].modules():
    if isinstance(layer, torch.nn.Linear):
        # Before `fully_shard`, which asks each parameter whether it has methods of its own.
        layer.weight = torch.nn.Parameter(layer.weight.as_subclass(GatheredIn8Bits))
for part in model[:-1]:
    fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep_gathered)
fully_shard(model[-1], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
model.to_empty(device=device)
models.initialise(model, args)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
