# No flags at all: what can be changed is changed here.
EPOCHS, BATCH, RATE = 400, 32, 0.05

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

dist.init_process_group("gloo")
torch.manual_seed(7)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
true = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
generator = torch.Generator().manual_seed(dist.get_rank())
for _epoch in range(EPOCHS):
    x = torch.randn(BATCH, 4, generator=generator)
    optimizer.zero_grad()
    loss = (model(x) - x @ true).pow(2).mean()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("found", [round(w, 2) for w in model.module.weight[0].tolist()])
dist.destroy_process_group()
