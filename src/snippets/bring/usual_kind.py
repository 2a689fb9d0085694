"""torchrun --standalone --nproc-per-node 2 src/snippets/bring/usual_kind.py

A script of the usual kind on ranks: BatchNorm, a validation after each epoch, the best model saved.
Started by python it trains in one process.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bootcamp.train import external

run_dir = external.begin()
world = int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if world > 1 else 0
torch.manual_seed(0)
images, classes = torch.randn(80, 3, 8, 8), torch.randint(0, 4, (80,))
dataset, valid = TensorDataset(images[:64], classes[:64]), (images[64:], classes[64:])
share = 16 // world
sampler = external.Noted(DistributedSampler(dataset, world, rank, drop_last=True), share)
loader = DataLoader(dataset, share, sampler=sampler, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
)
ranks = DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

run = external.Run(run_dir, ranks, optimizer, sampler, world, steps=2 * len(loader))
best = float("inf")
for epoch in range(2):
    sampler.set_epoch(epoch)
    ranks.train()
    for module in model.modules():  # frozen for the proof: in each epoch, since train() undoes it
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    for inputs, targets in loader:
        with run.step():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ranks(inputs), targets)
            loss.backward()
            optimizer.step()
        mean_loss = loss.detach() / world
        if world > 1:
            dist.all_reduce(mean_loss)
        run.loss(mean_loss)
    if rank == 0:
        model.eval()
        with torch.no_grad():  # `model`, not `ranks`: the wrapper's forward waits for all ranks
            loss = nn.functional.cross_entropy(model(valid[0]), valid[1]).item()
        if loss < best:  # one rank writes, and the names have no `module.`
            best = loss
            torch.save(model.state_dict(), run_dir / "best.pt")
        print(f"epoch {epoch}: validation loss {loss:.3f}")
run.finish()
if world > 1:
    dist.destroy_process_group()
