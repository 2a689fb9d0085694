"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/expert_without_rows.py

A mixture of experts; FSDP shards each expert and gathers it when it is called. "It trains for a
while, and then it stands still. Nothing has changed in that step."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Mixture(nn.Module):
    """Each token passes through the expert for which it has the highest score."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))

    def forward(self, tokens):
        weights, chosen = self.router(tokens).softmax(dim=1).max(dim=1)
        results = tokens.new_zeros(len(tokens), 1)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().flatten()
            if len(places):
                results = results.index_add(0, places, expert(tokens[places]))
        return weights[:, None] * results


torch.manual_seed(226)
inputs = torch.randn(20, 64, 8)
targets = inputs.sum(dim=2, keepdim=True).sin()
model = Mixture()
for expert in model.experts:
    fully_shard(expert)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[step, rank::world]), targets[step, rank::world])
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    losses.append(mean.item())
    print(f"rank {rank}, step {step}: the loss is {losses[-1]:.3f}\n", end="")
