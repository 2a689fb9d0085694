"""torchrun --standalone --nproc-per-node 2 src/snippets/hybrid_shard.py [--without-mesh | --in-ddp]

Hybrid sharding with FullyShardedDataParallel, the class before fully_shard; and two ways to break
it. Each rank prints a line of JSON about its part of the model and its training.
"""

import argparse
import json
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train import data, models
from bootcamp.train.models.mlp import Hidden
from bootcamp.train.sent_bytes import count_sent_bytes

parser = argparse.ArgumentParser()
parser.add_argument("--without-mesh", action="store_true")
parser.add_argument("--in-ddp", action="store_true")
args = parser.parse_args()
args.model, args.size, args.seed, args.dtype, args.global_batch = "mlp", "tiny", 0, "float32", 32

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
found = {"rank": rank, "error": None, "losses": []}

how = {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_id": torch.device("cpu")}
if not args.without_mesh:
    names = ("replicate", "shard")
    how["device_mesh"] = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=names)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    sharded = FullyShardedDataParallel(
        models.build(args), auto_wrap_policy=ModuleWrapPolicy({Hidden}), **how
    )
found["warnings"] = sorted({str(w.message) for w in caught if w.category is UserWarning})
found["ranks_of_a_copy"] = dist.get_world_size(sharded.process_group)


def part():
    """All numbers that this rank holds, in a row."""
    return torch.cat([p.detach().flatten().clone() for p in sharded.parameters()])


def copy_from_rank_0(tensor):
    """The tensor as rank 0 has it."""
    tensor = tensor.clone()
    dist.broadcast(tensor, 0)
    return tensor


model, mine = sharded, part()
if args.in_ddp:
    model = DistributedDataParallel(sharded)
found |= {"numbers": len(mine), "changed": int((part() != mine).sum())}
found["equals_rank_0s"] = torch.equal(part(), copy_from_rank_0(part()))

batches = data.Batches(args, rank, world)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
dist.barrier()
time.sleep(0.2)  # until all that was sent so far is confirmed: only then does the kernel count it
before = count_sent_bytes().get("all")
for step in range(10):
    inputs, targets = batches(step)
    optimizer.zero_grad()
    loss = models.loss(model(inputs), targets)
    try:
        loss.backward()
    except RuntimeError as error:
        found["error"] = str(error)
        break
    optimizer.step()
    found["losses"].append(loss.item())
if before is not None:
    found["sent_bytes"] = count_sent_bytes()["all"] - before
if not found["error"]:
    with FullyShardedDataParallel.summon_full_params(sharded):
        whole = part()
    found["apart_from_rank_0"] = (whole - copy_from_rank_0(whole)).abs().max().item()
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
