"""torchrun --standalone --nproc-per-node 2 src/snippets/torch_context_parallel.py

PyTorch's own context parallelism beside plain attention. Without GPUs it refuses, and the program
prints in which words. A function that was imported by its name is not replaced, and nobody says so.
"""

import json
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

torch.set_num_threads(1)
enough = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
kind, backend, dtype = (
    ("cuda", "nccl", torch.bfloat16) if enough else ("cpu", "gloo", torch.float32)
)
device = torch.device(kind, int(os.environ["LOCAL_RANK"]) if enough else None)
dist.init_process_group(backend)
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(kind, (world,))

torch.manual_seed(0)  # every rank draws the complete text
text = torch.randn(1, 4, 256, 64, device=device, dtype=dtype)
plain = scaled_dot_product_attention(text, text, text, is_causal=True)
# in PyTorch's order, too, a rank has an early piece of the text and a late one
pieces = torch.arange(256, device=device).chunk(2 * world)
mine = torch.cat([pieces[rank], pieces[-1 - rank]])
own = text[:, :, mine]
alone = scaled_dot_product_attention(own, own, own, is_causal=True)


def largest_difference(a, b):
    return (a - b).abs().max().item()


for called in ("by module", "by name"):
    row = {"rank": rank, "on": kind, "called": called}
    try:
        with context_parallel(mesh, buffers=(text,), buffer_seq_dims=(2,)):  # a part in here
            if called == "by module":
                part = functional.scaled_dot_product_attention(text, text, text, is_causal=True)
            else:
                part = scaled_dot_product_attention(text, text, text, is_causal=True)
        row["apart from plain attention"] = largest_difference(part, plain[:, :, mine])
        row["from attention in the part alone"] = largest_difference(part, alone)
    except NotImplementedError as error:
        row["refused"] = str(error).strip()
    print(json.dumps(row))
dist.destroy_process_group()
