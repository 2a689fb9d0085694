"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_evaluate.py

41 held-out samples in batches of 8, evaluated by any number of ranks: two ways that differ with the
number of ranks, and one that does not. Prints what each rank holds for the result, as JSON.
"""

import json
from argparse import Namespace

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from bootcamp.train import data, models

SAMPLES, BATCH = 41, 8
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
flags = Namespace(model="mlp", size="tiny", seed=0, dtype="float32")
model, dataset = models.build(flags), data.dataset(flags)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(400):  # every rank trains it alike, on other samples
    inputs, targets = dataset.batch(SAMPLES + 32 * step + torch.arange(32))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
batches = torch.arange(SAMPLES).split(BATCH)  # five of 8, and one of 1


def measure(ids):
    """(sum of the losses, how many are right) of some samples."""
    inputs, targets = dataset.batch(ids)
    outputs = model(inputs)
    losses = torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")
    return losses.double(), (outputs.argmax(-1) == targets).sum()


with torch.no_grad():
    # 1. Each rank has the mean of its batches' means; the ranks' means are averaged.
    padded = torch.tensor(list(DistributedSampler(range(SAMPLES), world, rank, shuffle=False)))
    means = [torch.stack(measure(ids)) / len(ids) for ids in padded.split(BATCH)]
    mean_of_means = torch.stack(means).mean(0) / world
    dist.all_reduce(mean_of_means)

    # 2. Sums and counts, but over what the sampler deals out.
    sums = sum(torch.stack(measure(ids)) for ids in padded.split(BATCH))
    sums = torch.cat([sums, torch.tensor([len(padded)])])
    dist.all_reduce(sums)

    # 3. Whole batches are dealt out, each sample once. Every batch has a place of its own, so that
    # all ranks add them up in one order, whatever the number of ranks.
    places = torch.zeros(len(batches), 3, dtype=torch.float64)
    for number in range(rank, len(batches), world):
        ids = batches[number]
        places[number] = torch.stack([*measure(ids), torch.tensor(len(ids))])
    dist.all_reduce(places)
    in_order = [sum(column) for column in places.T.tolist()]

WAYS = {"mean of means": [*mean_of_means.tolist(), 1], "padded sums": sums.tolist()}
for way, (loss, right, samples) in (WAYS | {"sums": in_order}).items():
    said = {"way": way, "ranks": world, "rank": rank}
    print(json.dumps(said | {"loss": loss / samples, "accuracy": right / samples}))
dist.destroy_process_group()
