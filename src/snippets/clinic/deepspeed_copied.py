"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/deepspeed_copied.py

A training with DeepSpeed, put together from four pages; 32 samples, each with its number. "The
batch of 32 is from a page about eight GPUs, I have two. Each page works, I tried them."
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.environ["DS_ACCELERATOR"] = "cpu"  # the ranks are CPU cores
import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, for minutes

CONFIG = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
deepspeed.init_distributed("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(32, 8)
dataset = TensorDataset(torch.arange(32), inputs, inputs.sum(dim=1, keepdim=True))
loader = DataLoader(dataset, batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
seen = []
for epoch in range(2):
    seen.append([])
    for numbers, batch, targets in loader:
        loss = nn.functional.mse_loss(model(batch), targets)
        model.backward(loss)
        model.step()
        seen[epoch] += numbers.tolist()
    if rank == 0:
        model.save_checkpoint("checkpoint")
    print(f"rank {rank}, epoch {epoch}: samples {seen[epoch][:8]} ...\n", end="")
