"""python src/snippets/bring/trainer.py

A class with a configuration in place of flags, as people's own trainers have. It trains a small
language model on texts of different length, whose padding does not count. One process still.
"""

from dataclasses import dataclass

import torch
from torch import nn
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
        self.model, self.config, self.world = model, config, world
        self.sampler = DistributedSampler(texts, world, rank, drop_last=True)
        share = config.batch_size // world
        self.loader = DataLoader(texts, share, sampler=self.sampler, drop_last=True)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        steps = config.epochs * len(self.loader)
        run_dir, settings = own_script.begin(), {"lr": config.learning_rate}
        whole = [run_dir, model, self.optimizer, self.loader, world, steps]
        self.run = own_script.Run(*whole, **settings)

    def loss(self, texts):
        """The mean over the tokens of a batch."""
        logits = self.model(texts[:, :-1].clamp(min=0))
        return nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())

    def train(self):
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for texts in self.loader:
                with self.run.step():
                    self.optimizer.zero_grad()
                    loss = self.loss(texts)
                    loss.backward()
                    self.optimizer.step()
                self.run.loss(loss.detach())
        self.run.finish()


torch.manual_seed(0)
numbers = torch.arange(32)
texts = (torch.arange(16) + numbers[:, None]) % 32
texts[torch.arange(16) > 2 + numbers[:, None] % 14] = PADDING
model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32))
Trainer(model, texts, Config()).train()
