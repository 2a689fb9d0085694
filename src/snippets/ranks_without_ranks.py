"""python src/snippets/ranks_without_ranks.py --how local

Data x tensor parallel on four ranks, right and with four mistakes, but without ranks: in torch's
local tensor mode, which keeps the tensors of all ranks in one process; or, --how fake --rank 0
--world 128, as one rank in torch's fake process group, which gives a rank its own part back.
Without --how, torchrun's ranks. `changes` puts a training script into a fake group.
"""

import argparse
import contextlib
import dataclasses
import json
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore

from bootcamp.costs import plans, sharding, traffic
from bootcamp.train import collective_counter
from bootcamp.train.models import gpt

HEADS, WIDTH, CONTEXT, BATCH = 2, 32, 16, 192
ALONE, SUMMED = "rank 0 alone adds up the last loss", "summed, not averaged"
HEADS_OF_FOUR, LEFT_OUT = "two heads over four ranks", "a quarter left out of the mesh"
MISTAKES = ("none", SUMMED, HEADS_OF_FOUR, LEFT_OUT, ALONE)
PLAN = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
PLAN |= {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}


def train(mistake: str) -> float:
    """Train for two steps; return the last loss."""
    world = dist.get_world_size()
    shapes = {HEADS_OF_FOUR: (world // 4, 4), LEFT_OUT: (world // 4 * 3, 1)}
    shape = shapes.get(mistake, (world // 2, 2))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    copies, place = mesh.get_group("data"), mesh["data"].get_local_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(make() for _, make in gpt.stages(1, WIDTH, HEADS, CONTEXT)))
    for block in model[1:-1]:
        parallelize_module(block, mesh["tensor"], PLAN)
    texts, each = torch.randint(256, (BATCH, CONTEXT + 1)), BATCH // shape[0]
    texts = texts.narrow(0, place * each, each)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad
            gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            dist.all_reduce(gradient, group=copies)
            if mistake != SUMMED:
                gradient /= shape[0]
        optimizer.step()
    mean = loss.detach() / shape[0]
    if mistake != ALONE or dist.get_rank() == 0:
        dist.all_reduce(mean, group=copies)
    return mean.item()


def attempt(mistake: str, mode) -> dict:
    """Return the loss or the error, how many calls there were, and a number that tells them."""
    tally, row = collective_counter.Tally(), {"mistake": mistake}
    try:
        with mode, tally:
            row["loss"] = train(mistake)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    made = str(list(tally.counts.items()))
    return row | {"calls": tally.counts.total(), "digest": zlib.crc32(made.encode())}


def changes(world: int) -> dict[str, str]:
    """Return the lines of a training script that make it rank 0 of so many, in a fake group."""
    store = "from torch.testing._internal.distributed.fake_pg import FakeStore"
    group = f'dist.init_process_group("fake", rank=0, world_size={world}, store=FakeStore())'
    return {
        "import torch": f'import os\n\nimport torch\n\nos.environ["WORLD_SIZE"] = "{world}"',
        "dist.init_process_group(context.backend, timeout=context.timeout)": f"{store}\n\n{group}",
    }


def add_replicas() -> dict[str, str]:
    """Return the lines that give _train_fsdp_tp.py a third axis: replicas of its shards, HSDP."""
    parse = "args, context = config.parse{}".format(
        "(own_flags=flags.SEQUENCE_PARALLEL, mesh=({}))"
    )
    mesh = "mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)"
    rows = 'mesh["replica", "shard"]'
    return {
        parse.format('"data", "tensor"'): parse.format('"replica", "shard", "tensor"'),
        mesh: f'{mesh}\n{rows}._flatten("data")',
        'fully_shard(block, mesh=mesh["data"])': f"fully_shard(block, mesh={rows})",
        'fully_shard(model, mesh=mesh["data"])': f"fully_shard(model, mesh={rows})",
    }


def sent_bytes(run, shard: int, tensor: int) -> tuple[float, float]:
    """Return what a rank of FSDP x tensor parallel would send: its calls', and by formula."""
    ranks = run.ranks[0]["world_size"]
    mesh = {"data": ranks // tensor, "tensor": tensor}
    config = {**run.config, "strategy": "fsdp_tp", "processes": ranks, "mesh": mesh}
    model, plan = plans.of_run(config)
    plan, calls = dataclasses.replace(plan, shard=shard), run.collective_counts()
    inside = traffic.tensor_calls(model, plan.batch // plan.data)
    groups = {tensor: {}, shard: {}, plan.data // shard: {}}
    for call, count in calls.items():
        kind = call[0]
        group = tensor if call in inside else plan.data // shard if kind == "all-reduce" else shard
        groups[group][call] = count
    sent = sum(sharding.bytes_of_calls(of, n, sharding.GLOO) for n, of in groups.items())
    return sent, sum(traffic.bytes_sent(model, plan).values())


def compare(first: list, last: list, local: list, real: list) -> list[dict]:
    """Table what shows each mistake. first, last: two fake ranks. real: the rows of four ranks."""
    rows = []
    for number, mistake in enumerate(MISTAKES):
        ranks = [row for row in real if row["mistake"] == mistake]
        errors = " ".join(row.get("error", "") for row in ranks).strip()
        fakes = first[number], last[number]
        calls = "the same" if fakes[0]["digest"] == fakes[1]["digest"] else "differ"
        row = {"mistake": mistake, "fake, rank 0": say(fakes[0]), "calls of 0 and 127": calls}
        row["local, 4 ranks"] = say(local[number])
        row["real, 4 ranks"] = "one waits in vain" if "peer" in errors else errors and "raises"
        row["real, 4 ranks"] = row["real, 4 ranks"] or say(ranks[0])
        rows.append(row)
    return rows


def say(row: dict) -> str:
    """Say how an attempt ended."""
    return "raises" if "error" in row else f"loss {row['loss']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=("fake", "local", "ranks"), default="ranks")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for mistake in MISTAKES:
        if args.how != "ranks":
            how = {"rank": args.rank, "world_size": args.world, "store": FakeStore()}
            dist.init_process_group("fake", **how)
        elif mistake == MISTAKES[0]:
            dist.init_process_group("gloo", timeout=timedelta(seconds=3))
        mode = LocalTensorMode(args.world) if args.how == "local" else contextlib.nullcontext()
        row = attempt(mistake, mode) | {"how": args.how, "rank": dist.get_rank()}
        print(json.dumps(row), flush=True)
        if args.how != "ranks":
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
