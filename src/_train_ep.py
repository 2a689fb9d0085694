"""torchrun --standalone --nproc-per-node 4 src/_train_ep.py --model moe

Expert parallelism: each rank has some experts of each layer, and tokens travel to their experts.
"""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, expert_flags, models, optimizers, record

args, context = config.parse(mesh=("expert",))
each = expert_flags.experts_of_each(context)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()


def dispatch(experts, inputs):
    """Send each row to the rank that has its expert."""
    rows, counts = inputs
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    experts.out = counts.view(world, each).sum(1).tolist()
    experts.back = arriving.view(world, each).sum(1).tolist()
    rows = all_to_all(rows, experts.back, experts.out, dist.group.WORLD)
    return rows, arriving.view(world, each)


def combine(experts, inputs, results):
    """Send each result to the rank that the row came from."""
    return all_to_all(results, experts.out, experts.back, dist.group.WORLD)


# 2. Model
model = models.build(args)
for block in model[1:-1]:
    block.experts.keep(range(rank * each, (rank + 1) * each))
    block.experts.register_forward_pre_hook(dispatch)
    block.experts.register_forward_hook(combine)
model = model.to(device)
mine = {name: value for name, value in model.named_parameters() if ".experts." in name}
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
        for parameter in mine.values():  # a sum over the ranks' losses, not their mean
            parameter.grad /= world
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
