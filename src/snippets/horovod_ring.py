"""torchrun --standalone --nproc-per-node 2 src/snippets/horovod_ring.py

A ring all-reduce by hand: in every step each rank sends one piece to the next rank. Each prints
what it holds after every step.
"""

import json

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
numbers = torch.arange(1, 2 * world + 1) * 10**rank  # the digit of a sum says whose number is in it
total = numbers.clone()
dist.all_reduce(total)  # the library's answer, to compare with

pieces = list(numbers.chunk(world))
held, sends = [[piece.tolist() for piece in pieces]], []
for step in range(2 * (world - 1)):
    sent, received = (rank - step) % world, (rank - step - 1) % world
    incoming = torch.empty_like(pieces[received])
    sending = dist.isend(pieces[sent], (rank + 1) % world)
    dist.recv(incoming, (rank - 1) % world)
    sending.wait()
    adding = step < world - 1  # in the first half of the steps; in the second, sums are passed on
    pieces[received] = pieces[received] + incoming if adding else incoming
    held.append([piece.tolist() for piece in pieces])
    sends.append(sent)
assert torch.equal(torch.cat(pieces), total)
print(json.dumps({"held": held, "sent": sends, "total": total.tolist()}))
dist.destroy_process_group()
