"""torchrun --standalone --nproc-per-node 2 src/snippets/learning_rates.py

What a larger batch does to the training, for one learning rate after another: the toy MLP with SGD,
the same number of samples each time, three seeds. One JSON line for each training: batch, rate,
steps of warm-up, seed, the highest loss of any step, and the loss on text that was held out. Ranks
share the trainings out; each training is that of one process.
"""

import json
import os
from argparse import Namespace

import torch

from bootcamp.train import data, models, optimizers

SAMPLES, SEEDS = 15_360, (0, 1, 2)
BASE_BATCH, BASE_RATE, FACTOR = 32, 0.05, 8  # the large batch is FACTOR times the base batch
LARGE_BATCH = BASE_BATCH * FACTOR
WARM_UP = round(0.05 * SAMPLES / LARGE_BATCH)  # steps: from the base rate to the scaled one
TRAININGS = {  # (batch, steps of warm-up): learning rates
    (BASE_BATCH, 0): (0.025, 0.05, 0.1, 0.2),
    (LARGE_BATCH, 0): (0.05, 0.1, 0.2, 0.4, 0.8),
    (LARGE_BATCH, WARM_UP): (0.4, 0.8),
}
HELD_OUT = 4096  # samples at the end of the text, of which no training sees one


def learning_rate(step: int, rate: float, warm_up: int) -> float:
    """Goyal et al. (2017), section 2.2: a ramp from the base rate up to the rate."""
    if step >= warm_up:
        return rate
    return BASE_RATE + (rate - BASE_RATE) * step / warm_up


def train(batch: int, rate: float, warm_up: int, seed: int) -> dict:
    """One training: its settings, its highest loss, its loss on the held-out samples."""
    args = Namespace(model="mlp", size="tiny", seed=seed, dtype="float32")
    args.optimizer, args.lr = "sgd", rate
    dataset, model = data.dataset(args), models.build(args)
    optimizer = optimizers.build(args, model.parameters())
    generator = torch.Generator().manual_seed(seed)
    mine = torch.randperm(len(dataset) - HELD_OUT, generator=generator)[:SAMPLES]
    highest = 0.0
    for step, ids in enumerate(mine.split(batch)):
        optimizer.param_groups[0]["lr"] = learning_rate(step, rate, warm_up)
        inputs, targets = dataset.batch(ids)
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        highest = max(highest, loss.item())
    with torch.no_grad():
        inputs, targets = dataset.batch(torch.arange(len(dataset) - HELD_OUT, len(dataset)))
        held_out = models.loss(model(inputs), targets).item()
    row = {"batch": batch, "rate": rate, "warm_up": warm_up, "seed": seed}
    return row | {"highest": highest, "held_out": held_out}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    every = [
        (batch, rate, warm_up, seed)
        for (batch, warm_up), rates in TRAININGS.items()
        for rate in rates
        for seed in SEEDS
    ]
    for settings in every[rank::world]:
        print(json.dumps(train(*settings)), flush=True)
