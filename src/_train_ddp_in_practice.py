"""torchrun --standalone --nproc-per-node 4 src/_train_ddp_in_practice.py --steps 20 --clip 0.5

DDP with what people add to it: a model that returns a tuple, torch.compile, clipped gradients.
"""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# The largest norm that a gradient may have, and the compiler's backend, if any.
FLAGS = {"--clip": {"type": float, "default": 0.5}, "--backend": {}}


# The model's stages, and a forward of its own that ends with the loss, as many libraries' do.
class WithLoss(torch.nn.Sequential):
    def forward(self, inputs, targets):
        outputs = super().forward(inputs)
        # A tuple with a dictionary in it: DDP finds the tensors in both.
        return models.loss(outputs, targets), {"outputs": outputs}


args, context = config.parse(own_flags=FLAGS)
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
# The same stages under the same names, so that the parameters are the baseline's.
model = WithLoss(OrderedDict(models.build(args).named_children())).to(device)
if args.backend:
    # In place, before DDP wraps it: the parameters keep their names, and DDP still cuts the graph.
    model.compile(backend=args.backend)
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
        # The forward of the wrapper, so that DDP prepares its backward, and its first output.
        loss, _ = model(inputs, targets)
        loss.backward()
        # Behind the backward all ranks hold the same averaged gradients, so all clip alike.
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
