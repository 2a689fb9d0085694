"""torchrun --standalone --nproc-per-node 4 src/_train_ep.py --model moe

Expert parallelism: each rank has some experts of each layer, and tokens travel to their experts.
"""

import torch
import torch.distributed as dist

# A private API of torch: an all-to-all with a backward, in which gradients travel the other way.
from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

# Names the axis on which the ranks stand; each of them still trains its own share of the batch.
args, context = config.parse(mesh=("expert",))
# How many experts of a layer a rank gets; refuses a number of ranks that does not divide them.
each = flags.count_parts_of_rank(context, "moe", "experts")
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()


def dispatch(experts, inputs):
    """Send each row to the rank that has its expert."""
    rows, counts = inputs
    arriving = torch.empty_like(counts)
    # The numbers of rows first: a rank cannot know how many the others' routers send it.
    dist.all_to_all_single(arriving, counts)
    # Rows for each rank: they are sorted by expert, and a rank's experts are neighbours.
    experts.sent = counts.view(world, each).sum(1).tolist()
    experts.received = arriving.view(world, each).sum(1).tolist()
    # The rows themselves; each rank's part has its own length.
    rows = all_to_all(rows, experts.received, experts.sent, dist.group.WORLD)
    # What the experts are called with in place of this rank's own rows.
    return rows, arriving.view(world, each)


def combine(experts, inputs, results):
    """Send each result to the rank that the row came from."""
    # The same exchange with the two lists swapped, so each result ends where its row began.
    return all_to_all(results, experts.sent, experts.received, dist.group.WORLD)


# 2. Model
model = models.build(args)
for block in model[1:-1]:
    # Rank 0 keeps the first experts of each layer, rank 1 the next; the others are freed.
    block.experts.keep(range(rank * each, (rank + 1) * each))
    # Around the experts alone: router, attention and norms see this rank's tokens.
    block.experts.register_forward_pre_hook(dispatch)
    block.experts.register_forward_hook(combine)
model = model.to(device)
# The parameters that no other rank has.
mine = {name: value for name, value in model.named_parameters() if ".experts." in name}
# Private too; without it DDP averages the gradients of different experts.
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, mine)
model = DistributedDataParallel(model)

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
        for parameter in mine.values():
            # Rows of all ranks came here, so this is a sum of ranks; DDP's is a mean.
            parameter.grad /= world
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
