"""torchrun --standalone --nproc-per-node 2 src/snippets/bring/trainer_ddp.py

A class with a configuration in place of flags, as people's own trainers have. It trains a small
language model on texts of different length, whose padding does not count. On several ranks.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from bootcamp.train import own_script

PADDING = -100  # cross_entropy leaves such targets out


@dataclass
class Config:
    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 0.5


class Trainer:
    """Train a model on texts."""

    def __init__(self, model, texts, config, rank=0, world=1):
        self.model, self.config, self.world = DistributedDataParallel(model), config, world
        self.sampler = DistributedSampler(texts, world, rank, drop_last=True)
        share = config.batch_size // world
        self.loader = DataLoader(texts, share, sampler=self.sampler, drop_last=True)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        steps = config.epochs * len(self.loader)
        run_dir, settings = own_script.begin(), {"lr": config.learning_rate}
        whole = [run_dir, model, self.optimizer, self.loader, world, steps]
        self.run = own_script.Run(*whole, **settings)

    def loss(self, texts):
        """This rank's part of the mean over all ranks' tokens, times the ranks."""
        logits, targets = self.model(texts[:, :-1].clamp(min=0)), texts[:, 1:]
        count = (targets != PADDING).sum()
        dist.all_reduce(count)
        flat = logits.flatten(0, 1), targets.flatten()
        total = nn.functional.cross_entropy(*flat, reduction="sum")
        return total * self.world / count

    def train(self):
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for texts in self.loader:
                with self.run.step():
                    self.optimizer.zero_grad()
                    loss = self.loss(texts)
                    loss.backward()
                    self.optimizer.step()
                mean = loss.detach() / self.world
                dist.all_reduce(mean)
                self.run.loss(mean)
        self.run.finish()


dist.init_process_group()
torch.manual_seed(0)
numbers = torch.arange(32)
texts = (torch.arange(16) + numbers[:, None]) % 32
texts[torch.arange(16) > 2 + numbers[:, None] % 14] = PADDING
model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32))
Trainer(model, texts, Config(), dist.get_rank(), dist.get_world_size()).train()
