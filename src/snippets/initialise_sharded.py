"""torchrun --standalone --nproc-per-node 2 src/snippets/initialise_sharded.py --way meta

Initialises a model that no rank may hold complete: Linux gives each rank room for a share of its
bytes (RLIMIT_DATA). Built complete and then sharded, or on the meta device. Each rank prints by how
many bytes its memory grew at most, or the error. On other systems than Linux it prints nothing.
"""

import argparse
import ctypes
import json
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bootcamp import machine
from bootcamp.train import models

parser = argparse.ArgumentParser()
parser.add_argument("--way", choices=("complete", "meta"), default="meta")
parser.add_argument("--room", type=float, default=0.6, help="share of the model's bytes")
parser.add_argument("--size", default="small")
args = parser.parse_args()
args.model, args.seed, args.dtype = "gpt", 0, "float32"
STATUS = Path("/proc/self/status")
if not STATUS.exists():
    sys.exit()

# M_MMAP_THRESHOLD of glibc (mallopt(3)): pages of a tensor that is freed go back at once
if hasattr(libc := ctypes.CDLL(None), "mallopt"):
    libc.mallopt(-3, 64 * 1024)

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))


def build_sharded(args):
    """The model in shards over all ranks, with the parameters that one process would draw."""
    with torch.device("meta" if args.way == "meta" else "cpu"):
        model = models.build(args)
    for stage in model:
        fully_shard(stage, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if args.way == "meta":
        model.to_empty(device="cpu")
        models.initialise(model, args)
    return model


def read_process_bytes(field):
    """Bytes of this process: VmRSS in memory now, VmData that it has asked for."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


# what torch loads at its first use
build_sharded(argparse.Namespace(**{**vars(args), "size": "tiny"}))
with torch.device("meta"):
    stages = [sum(p.nbytes for p in stage.parameters()) for stage in models.build(args)]
before, room = read_process_bytes("VmRSS"), int(args.room * sum(stages))
limit = read_process_bytes("VmData") + room
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
said = {"rank": rank, "model": sum(stages), "largest": max(stages), "room": room, "error": None}
try:
    model = build_sharded(args)
    said["held"] = sum(p.to_local().nbytes for p in model.parameters())
except RuntimeError as error:
    said["error"] = str(error).partition("Allocator: ")[2].partition(". Err")[0]
said["grown"] = machine.process_peak_bytes() - before
print(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
