"""torchrun --standalone --nproc-per-node 2 src/snippets/bring/with_ddp.py --epochs 2

The script that somebody brought, as data parallel training with DDP.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bootcamp.train import external

run_dir = external.begin()
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--dropout", type=float, default=0.1)
args = parser.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def spirals(points: int) -> TensorDataset:
    """Points of two spirals with noise: (points, 2) coordinates, (points,) classes 0 and 1."""
    classes = torch.arange(points) % 2
    turn = torch.rand(points) * 3 * torch.pi
    angle = turn + classes * torch.pi
    place = turn.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], dim=1) / 10
    return TensorDataset(place + 0.02 * torch.randn(points, 2), classes)


class SpiralNet(nn.Module):
    """Three layers; (batch, 2) coordinates to (batch, 2) scores."""

    def __init__(self, width: int = 256, dropout: float = 0.1):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(width, 2),
        )

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.layers(places)


dataset = spirals(1000)
share = args.batch_size // world
sampler = external.Noted(DistributedSampler(dataset, world, rank, drop_last=True), share)
loader = DataLoader(dataset, share, sampler=sampler, drop_last=True)
model = DistributedDataParallel(SpiralNet(dropout=args.dropout))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

steps = args.epochs * len(loader)
run = external.Run(
    run_dir, model, optimizer, sampler, world, steps, lr=args.lr, dropout=args.dropout
)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for places, classes in loader:
        with run.step():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(places), classes)
            loss.backward()
            optimizer.step()
        mean_loss = loss.detach() / world
        dist.all_reduce(mean_loss)
        run.loss(mean_loss)
    print(f"epoch {epoch}: loss {mean_loss.item():.3f}")
run.finish()
dist.destroy_process_group()
