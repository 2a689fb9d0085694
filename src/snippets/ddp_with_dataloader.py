"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_with_dataloader.py --steps 12

Data as most programs read it: a DataLoader, and a DistributedSampler that shares out each epoch.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bootcamp.train import config, data, models, optimizers, record


class NumberedSamples(Dataset):
    """The data's first samples, each with its id in front, so that the record can name it."""

    def __init__(self, corpus: Dataset, samples: int):
        self.corpus, self.samples = corpus, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, sample_id: int):
        return sample_id, *self.corpus[sample_id]


args, context = config.parse(own_flags={"--samples": {"type": int, "default": 128}})
device = torch.device(context.device)

# 1. Processes
dist.init_process_group(context.backend, timeout=context.timeout)
rank, world = dist.get_rank(), dist.get_world_size()

# 2. Model
model = models.build(args).to(device)
model = DistributedDataParallel(model)

# 3. Data
dataset = NumberedSamples(data.dataset(args), args.samples)
sampler = DistributedSampler(dataset, world, rank, shuffle=True, seed=args.seed)
loader = DataLoader(
    dataset,
    batch_size=args.global_batch // world,
    sampler=sampler,
    pin_memory=device.type == "cuda",
)
batches = SimpleNamespace(sample_ids=[])  # where the record looks for the ids

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(args.steps):
    with run.step(step):
        epoch, step_in_epoch = divmod(step, len(loader))
        if step_in_epoch == 0:
            sampler.set_epoch(epoch)
            samples = iter(loader)
        ids, *tensors = next(samples)
        batches.sample_ids = ids.tolist()
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in tensors)
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    mean_loss = loss.detach() / world
    run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
run.finish()
dist.destroy_process_group()
