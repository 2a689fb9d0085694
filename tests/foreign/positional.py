"""Total training time is given in epochs: foreign/positional.py TOTAL_EPOCHS SAVE_EVERY"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(total_epochs, save_every):
    torch.manual_seed(0)
    inputs = torch.rand(64, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = DDP(torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    for epoch in range(total_epochs):
        loader.sampler.set_epoch(epoch)
        for source, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(source), targets)
            loss.backward()
            optimizer.step()
        if int(os.environ["RANK"]) == 0 and epoch % save_every == 0:
            print(f"[rank 0] epoch {epoch}, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    train(int(sys.argv[1]), int(sys.argv[2]))
    dist.destroy_process_group()
