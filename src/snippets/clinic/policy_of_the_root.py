"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/policy_of_the_root.py

FSDP in bfloat16, so that half as many bytes are gathered. "I gave the policy to fully_shard, and
nothing complained. The curve is exactly that of float32: sixteen bits cost us nothing."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
tokens = torch.randint(32, (20, 64))
following = (7 * tokens + 3) % 32
model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for layer in model:
    fully_shard(layer)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for step in range(20):
    optimizer.zero_grad()
    scores = model(tokens[step, rank::world]).float()
    loss = nn.functional.cross_entropy(scores, following[step, rank::world])
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    losses.append(mean.item())
print(f"rank {rank}: the loss falls from {losses[0]:.3f} to {losses[-1]:.3f}\n", end="")
