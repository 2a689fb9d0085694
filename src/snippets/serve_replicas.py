"""torchrun --standalone --nproc-per-node 2 src/snippets/serve_replicas.py --global-batch 32

A model per device: every rank has the whole model and answers its share of the requests.
"""

import torch
import torch.distributed as dist

from bootcamp.train import config, data, models, record

args, context = config.parse()
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device).eval()

# 3. Data
# a step is one batch of requests
batches = data.Batches(args, rank, world)

# 4. Optimizer
# none: parameters stay as they are, so there are no gradients to exchange
optimizer = None

# 5. Serving loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step), torch.inference_mode():
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        loss = models.loss(model(inputs), targets)
    # for the record alone: no rank needs another one for its answers
    mean_loss = loss / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
run.finish()
dist.destroy_process_group()
