"""torchrun --standalone --nproc-per-node 4 src/_train_ddp_sync_batchnorm.py --model resnet50

DDP with batch normalisation over the global batch: its sums are taken over all ranks.
"""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import checkpoint, config, data, models, optimizers, record


class SyncBatchNorm(torch.nn.BatchNorm2d):
    """(batch, channels, height, width): the mean and variance of each channel over all ranks.

    torch.nn.SyncBatchNorm does the same in GPU kernels of its own, and runs on GPUs only.
    """

    def forward(self, x):
        count = dist.get_world_size() * x.numel() / x.shape[1]
        # Each channel's mean over the global batch; the backward of this sum is an all-reduce too.
        mean = all_reduce(x.sum((0, 2, 3), keepdim=True)) / count
        # This rank's values around the mean of all.
        centred = x - mean
        variance = all_reduce(centred.square().sum((0, 2, 3), keepdim=True)) / count
        # The learnt weight over the standard deviation; eps keeps it from a division by 0.
        scale = self.weight.view(mean.shape) * (variance + self.eps).rsqrt()
        with torch.no_grad():
            # The running mean moves a little towards this batch's.
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten() * count / (count - 1), self.momentum)
        return centred * scale + self.bias.view(mean.shape)


args, context = config.parse()
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
# Looks through all layers of the model.
for module in model.modules():
    # Takes the plain BatchNorm layers only.
    if type(module) is torch.nn.BatchNorm2d:
        # The layer keeps its parameters and gets the other forward.
        module.__class__ = SyncBatchNorm
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
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    checkpoint.save(context, step, model, optimizer)
run.finish()
dist.destroy_process_group()
