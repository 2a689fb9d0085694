"""Total training time is given in epochs: foreign/positional.py TOTAL_EPOCHS SAVE_EVERY"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, data, optimizer, save_every):
        self.rank = int(os.environ["RANK"])
        self.model, self.data, self.optimizer = DDP(model), data, optimizer
        self.save_every = save_every

    def train(self, total_epochs):
        for epoch in range(total_epochs):
            self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(self.model(source), targets)
                loss.backward()
                self.optimizer.step()
            if self.rank == 0 and epoch % self.save_every == 0:
                print(f"[rank {self.rank}] epoch {epoch}, loss {loss.item():.4f}", flush=True)


def main(total_epochs, save_every):
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    inputs = torch.rand(64, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    Trainer(model, loader, optimizer, save_every).train(total_epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
