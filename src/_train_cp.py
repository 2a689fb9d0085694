"""torchrun --standalone --nproc-per-node 4 src/_train_cp.py --steps 20 --global-batch 32

Context parallelism: each text is split over the ranks, and all ranks have all parameters.
"""

import torch
import torch.distributed as dist

# A private API of torch: an all-gather with a backward, which adds up gradients and scatters them.
from torch.distributed._functional_collectives import all_gather_tensor_autograd as all_gather
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, flags, models, optimizers, record

args, context = config.parse(mesh=("context",))
# Refuses models that do more along the text than attend to it, and texts that do not divide.
flags.count_parts_of_rank(context, "gpt", "context")
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# An early piece of the text and a late one for each rank: late positions attend to more others.
pieces = torch.arange(models.shape(args)["context"], device=device).view(2 * world, -1)
places = [torch.cat([pieces[k], pieces[-1 - k]]) for k in range(world)]
mine, gathered = places[rank], torch.cat(places)


def attend(query, key, value, enable_gqa):
    """Attend from this rank's positions to the complete text."""
    # Only here do positions meet, so only keys and values have to travel.
    key, value = (all_gather(part, 2, dist.group.WORLD) for part in (key, value))
    # Causal by position: what was gathered stands in the order of the ranks.
    seen = mine[:, None] >= gathered
    return scaled_dot_product_attention(query, key, value, seen, enable_gqa=enable_gqa)


# 2. Model
model = models.build(args).to(device)
# Each position's vector depends on where it stands, so all are looked up, and this rank's kept.
model.embedding.register_forward_hook(lambda embedding, inputs, output: output[:, mine])
for block in model[1:-1]:
    block.attention.attend = attend
model = DistributedDataParallel(model)

# 3. Data
# All ranks get the same texts: they train one model together.
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
        # The mean of this rank's positions; every rank has as many, so DDP's mean is that of all.
        loss = models.loss(model(inputs), targets[:, mine])
        loss.backward()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
