"""torchrun --standalone --nproc-per-node 2 src/snippets/bring/with_ddp.py --epochs 2

The script that somebody brought, as data parallel training with DDP.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

from bootcamp.train import own_script

run_dir = own_script.begin()
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--flip", type=float, default=0.5)
parser.add_argument("--freeze", action="store_true", help="BatchNorm, for the proof")
args = parser.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def stripes(count: int) -> TensorDataset:
    """Noisy pictures (count, 3, 8, 8) of stripes; their class, 0 to 3, is how narrow they are."""
    kinds = torch.arange(count) % 4
    waves = torch.sin(torch.linspace(0, torch.pi, 8) * (1 + kinds.unsqueeze(1)))
    return TensorDataset(waves.view(count, 1, 8, 1) + torch.randn(count, 3, 8, 8), kinds)


class Flipped(Dataset):
    """The pictures of another data set, some of them flipped from left to right."""

    def __init__(self, pictures: Dataset, probability: float):
        self.pictures, self.probability = pictures, probability

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, number: int):
        picture, kind = self.pictures[number]
        return (picture.flip(-1) if torch.rand(()) < self.probability else picture), kind


train, valid = random_split(stripes(169), [128, 41])
model = nn.Sequential(
    nn.Conv2d(3, 16, 3),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(args.dropout),
    nn.Linear(256, 4),
)
wrapped = DistributedDataParallel(model)
torch.manual_seed(1 + rank)  # after the split and the model: masks and flips of its own
share = args.batch_size // world
sampler = DistributedSampler(train, world, rank, drop_last=True)
loader = DataLoader(Flipped(train, args.flip), share, sampler=sampler, drop_last=True)
valid_loader = DataLoader(Subset(valid, range(rank, len(valid), world)), args.batch_size)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

steps = args.epochs * len(loader)
settings = {"lr": args.lr, "dropout": args.dropout, "flip": args.flip, "freeze": args.freeze}
run = own_script.Run(run_dir, model, optimizer, loader, world, steps, **settings)
best = float("inf")
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    model.train()
    for module in model.modules():
        if args.freeze and isinstance(module, nn.BatchNorm2d):
            module.eval()  # in each epoch: model.train() undoes it
    for pictures, kinds in loader:
        with run.step():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(pictures), kinds)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
        mean_loss = loss.detach() / world
        dist.all_reduce(mean_loss)
        run.loss(mean_loss)
    model.eval()
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # all evaluate what rank 0 saves
    total = torch.zeros(())
    with torch.no_grad():
        for pictures, kinds in valid_loader:
            total += nn.functional.cross_entropy(model(pictures), kinds, reduction="sum")
    dist.all_reduce(total)
    valid_loss = total.item() / len(valid)
    run.note(valid_loss=valid_loss)
    if valid_loss < best:
        best = valid_loss
        if rank == 0:
            torch.save(model.state_dict(), run_dir / "best.pt")
    if rank == 0:
        print(f"epoch {epoch}: validation loss {valid_loss:.4f}")
run.finish()
dist.destroy_process_group()
