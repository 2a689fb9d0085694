"""torchrun --standalone --nproc-per-node 2 src/snippets/experts_sharded.py --model moe --mesh 2x1

Expert parallelism with FSDP2: each expert has replicas, over which it is sharded, on the mesh's
first axis. Rows travel along the second. All other parameters are sharded over all ranks. On four
ranks: --mesh 2x2.
"""

import torch
import torch.distributed as dist

# A private API of torch: an all-to-all with a backward, in which gradients travel the other way.
from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

args, context = config.parse(mesh=("data", "expert"))
each = flags.count_parts_of_rank(context, "moe", "experts")
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
group, place = mesh.get_group("expert"), mesh.get_local_rank("expert")


def dispatch(experts, inputs):
    """Send each row to the rank that has its expert."""
    rows, counts = inputs
    arriving = torch.empty_like(counts)
    # The numbers of rows first: a rank cannot know how many the others' routers send it.
    dist.all_to_all_single(arriving, counts, group=group)
    # Rows for each rank: they are sorted by expert, and a rank's experts are neighbours.
    experts.sent = counts.view(-1, each).sum(1).tolist()
    experts.received = arriving.view(-1, each).sum(1).tolist()
    # The rows themselves; each rank's part has its own length.
    rows = all_to_all(rows, experts.received, experts.sent, group)
    # What the experts are called with in place of this rank's own rows.
    return rows, arriving.view(-1, each)


def combine(experts, inputs, results):
    """Send each result to the rank that the row came from."""
    # The same exchange with the two lists swapped, so each result ends where its row began.
    return all_to_all(results, experts.sent, experts.received, group)


# 2. Model
model = models.build(args)
for block in model[1:-1]:
    # Rank 0 keeps the first experts of each layer, rank 1 the next; the others are freed.
    block.experts.keep(range(place * each, (place + 1) * each))
    # Around the experts alone: router, attention and norms see this rank's tokens.
    block.experts.register_forward_pre_hook(dispatch)
    block.experts.register_forward_hook(combine)
    # Over an expert's replicas alone: ranks along the other axis have other experts.
    fully_shard(block.experts, mesh=mesh["data"])
    fully_shard(block)
fully_shard(model)
model = model.to(device)
mine = [parameter for block in model[1:-1] for parameter in block.experts.parameters()]
for parameter in mine:
    # For the proof, which adds such parameters up over all ranks: each replica is a part.
    parameter.only_here = 1 / mesh["data"].size()

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
        for parameter in mine:
            # FSDP2 has made a mean over the replicas; the rows of these ranks were added up.
            parameter.grad /= mesh["expert"].size()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
