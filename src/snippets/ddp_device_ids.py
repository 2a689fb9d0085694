"""torchrun --standalone --nproc-per-node 2 src/snippets/ddp_device_ids.py

What DistributedDataParallel says to models that lie on the CPU, on two devices, or on two kinds;
and where inputs arrive with one device_id, on the device that every machine has besides its CPU.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
on_cpu = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
two_kinds = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to("meta"))
for words, model, device_ids in (
    ("two device_ids", on_cpu, [0, 1]),
    ("a CPU model, one device_id", on_cpu, [0]),
    ("two kinds of devices", two_kinds, None),
    ("a CPU model, device_ids=None", on_cpu, None),
):
    try:
        DistributedDataParallel(model, device_ids=device_ids)
        answer = "accepted"
    except (ValueError, RuntimeError) as error:
        answer = f"{type(error).__name__}: {error}"
    assert (answer == "accepted") == (model is on_cpu and not device_ids), answer
    if dist.get_rank() == 0:
        print(f"{words}\n    {answer}")

model, arrived = nn.Linear(4, 4, device="meta"), []
model.register_forward_pre_hook(lambda module, inputs: arrived.append(inputs[0].device.type))
wrapped = DistributedDataParallel(model, device_ids=[0], init_sync=False)  # no numbers to send
with wrapped.no_sync():
    wrapped(torch.ones(2, 4)).sum().backward()
assert arrived == [model.weight.grad.device.type] == ["meta"], "the inputs were not moved"
if dist.get_rank() == 0:
    print(f"a model on meta, one device_id\n    accepted; CPU inputs arrive on {arrived[0]}")
dist.barrier()
dist.destroy_process_group()
