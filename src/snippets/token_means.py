"""torchrun --standalone --nproc-per-node 2 src/snippets/token_means.py

Texts of unequal length, padded: four ways to train on them, and what the loss is divided by. Rank 0
prints how far the parameters end from those of one process, in distances that these have moved,
and how far the last loss that the training reports is from the right one.
"""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from bootcamp.train.models import gpt

TEXTS, POSITIONS, STEPS, PADDING = 16, 32, 3, -100
LENGTHS = [32, 30, 29, 31, 6, 9, 7, 5, 21, 3, 12, 30, 4, 8, 17, 2]  # long ones come first
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # little rounding: what is equal shows as equal
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))


def build() -> nn.Sequential:
    """Build the same small GPT each time: embedding, two blocks, head."""
    torch.manual_seed(0)
    return nn.Sequential(*(make() for _, make in gpt.stages(2, 32, 2, POSITIONS)))


def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch, (texts, positions); targets behind a text's end are PADDING."""
    generator = torch.Generator().manual_seed(step)
    texts = torch.randint(40, (TEXTS, POSITIONS + 1), generator=generator)
    inputs, targets = texts[:, :-1], texts[:, 1:]
    ended = torch.arange(POSITIONS) >= torch.tensor(LENGTHS)[:, None]
    return inputs, targets.masked_fill(ended, PADDING)


def add_up(scores, targets) -> torch.Tensor:
    """Add up the losses of the tokens that are there."""
    return cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")


def count(targets) -> int:
    return int((targets != PADDING).sum())


def divisor(kind: str, part, mine, everything, shares: int, parts: int) -> int:
    """Give what a micro-batch's sum is divided by, so that gradients add up over all of them.

    part, mine, everything: targets of the micro-batch, the rank and the batch, which has so many
    shares, of so many parts.
    """
    return {
        "all tokens": count(everything),
        "the rank's tokens": shares * count(mine),
        "the micro-batch's tokens": shares * parts * count(part),
        "all positions": everything.numel(),
    }[kind]


def wrap(model: nn.Sequential, way: str) -> nn.Module:
    if way == "FSDP2":
        for part in model:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return DistributedDataParallel(model) if way in ("DDP", "accumulation") else model


def train(way: str, kind: str, make_optimizer) -> tuple[list[torch.Tensor], float]:
    """Train for STEPS; return the complete parameters and the last loss that is reported."""
    shares = world if way in ("DDP", "accumulation", "FSDP2") else 1
    parts = {"accumulation": 2, "pipeline": 2 * world}.get(way, 1)
    model, seen = build(), {}

    def loss_of(scores, part):
        return add_up(scores, part) / divisor(kind, part, **seen, shares=shares, parts=parts)

    if way == "pipeline":
        ends = [round(len(model) * n / world) for n in range(world + 1)]
        model = model[ends[rank] : ends[rank + 1]]
        stage = PipelineStage(model, rank, world, torch.device("cpu"))
        # `scale_grads` would divide by the number of micro-batches once more
        schedule = ScheduleGPipe(stage, parts, loss_fn=loss_of, scale_grads=False)
    model = wrap(model, way)
    optimizer = make_optimizer(model.parameters())
    for step in range(STEPS):
        inputs, targets = everything = draw(step)
        if shares > 1:
            inputs, targets = (tensor.chunk(world)[rank] for tensor in everything)
        seen |= {"mine": targets, "everything": everything[1]}
        losses = []
        if way == "pipeline":
            given = (inputs,) if rank == 0 else ()
            last = {"target": targets, "losses": losses} if rank == world - 1 else {}
            schedule.step(*given, **last)
        else:
            for part, wanted in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                loss = loss_of(model(part), wanted)
                (shares * loss).backward()  # DDP and FSDP2 divide by the number of ranks
                losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    reported = sum(losses, torch.zeros(()))
    parameters = [parameter.detach() for parameter in model.parameters()]
    if way == "FSDP2":
        parameters = [parameter.full_tensor() for parameter in parameters]
    if way == "pipeline":
        stages = [None] * world
        dist.all_gather_object(stages, parameters)
        parameters = sum(stages, [])
    if way != "one process":
        dist.all_reduce(reported)
    return parameters, reported.item()


def distance(some, others) -> float:
    return torch.cat([(a - b).flatten() for a, b in zip(some, others, strict=True)]).norm().item()


OF_RANKS = ("all tokens", "the rank's tokens", "all positions")
WAYS = {
    "DDP": OF_RANKS,
    "FSDP2": OF_RANKS,
    "accumulation": (*OF_RANKS, "the micro-batch's tokens"),
    "pipeline": ("all tokens", "the micro-batch's tokens", "all positions"),
}
begin = [parameter.detach() for parameter in build().parameters()]
alone = {name: train("one process", "all tokens", make) for name, make in OPTIMIZERS.items()}
for way, kinds in WAYS.items():
    for kind in kinds:
        row = {"way": way, "divided by": kind}
        for name, make in OPTIMIZERS.items():
            parameters, loss = train(way, kind, make)
            right, its_loss = alone[name]
            row[f"{name}: apart"] = distance(parameters, right) / distance(right, begin)
            row[f"{name}: loss - right"] = loss - its_loss
        if rank == 0:
            print(json.dumps(row), flush=True)
dist.destroy_process_group()
