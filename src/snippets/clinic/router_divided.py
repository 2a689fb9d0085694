"""torchrun --standalone --nproc-per-node 2 src/snippets/clinic/router_divided.py

Four experts, shared out over the ranks; each token goes to the rank of its expert and back.
"The rows of all ranks came to my expert, so I divide by the number of ranks. With AdamW the curve
is that of one rank."
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
each = 4 // world  # of four experts
torch.manual_seed(0)
inputs = torch.randn(20, 32, 8)
targets = inputs.sum(dim=2, keepdim=True).sin()
experts = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(4)]
router = DistributedDataParallel(nn.Linear(8, 4))
mixture = nn.ModuleList([router, *experts[rank * each : (rank + 1) * each]])


def forward(tokens):
    """Send tokens to their experts; return the results, in the tokens' order."""
    weights, chosen = router(tokens).softmax(dim=1).max(dim=1)
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=4)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sent, received = (c.view(world, each).sum(dim=1).tolist() for c in (counts, arriving))
    rows = all_to_all(tokens[order], received, sent, dist.group.WORLD).split(arriving.tolist())
    results = torch.cat([mixture[1 + i % each](part) for i, part in enumerate(rows)])
    results = all_to_all(results, sent, received, dist.group.WORLD)
    return weights[:, None] * results[order.argsort()]


model = mixture
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(forward(inputs[step, rank::world]), targets[step, rank::world])
    loss.backward()
    for parameter in model.parameters():
        parameter.grad /= world
    optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    losses.append(mean.item())
print(f"rank {rank}: the loss falls from {losses[0]:.3f} to {losses[-1]:.3f}\n", end="")
