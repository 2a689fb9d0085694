"""torchrun --standalone --nproc-per-node 2 src/snippets/collective_order.py

Two ranks call the same two all-reduces, but in different order. Nothing fails.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
loss = torch.tensor(1.0)
tokens = torch.tensor(1000.0)
mine = [loss, tokens] if rank == 0 else [tokens, loss]
for tensor in mine:
    dist.all_reduce(tensor)
print(f"rank {rank}: loss {loss.item():.0f}, tokens {tokens.item():.0f}\n", end="")
dist.destroy_process_group()
