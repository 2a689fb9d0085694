"""python src/_train_dp.py --steps 20 --global-batch 32

nn.DataParallel: one process drives every GPU, one thread each. Kept for old code; DDP replaces it.
"""

import torch
from torch.nn import DataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record

# It splits over GPUs only, so it asks for them wherever there are some.
args, context = config.parse(devices=("cuda",) if torch.cuda.is_available() else ("cpu",))
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1

# 2. Model
model = models.build(args).to(device)
# From now on a forward scatters the batch, copies the model to each GPU and gathers the outputs.
model = DataParallel(model)
# With fewer than two GPUs it silently does nothing, so the script asks.
if len(model.device_ids) < 2:
    # Reports what the library keeps to itself.
    print("DataParallel found fewer than two GPUs: it runs the bare model and splits nothing.")

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
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
