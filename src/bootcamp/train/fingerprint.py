"""Calculate a few numbers that differ when two models' parameters differ, however sharded."""

import collections
import zlib

import torch
import torch.distributed as dist

from bootcamp.train import models, sharded_tensors

PROJECTIONS = 8
CHUNK = 1 << 17  # numbers: their signs in all directions are 8 MiB


def fingerprint(model: torch.nn.Module, beat=lambda: None) -> list[float] | None:
    """Project all parameters on eight random directions, in float64; None on the meta device.

    Directions have entries of +1 and -1 from a generator seeded by the parameter's name, so a model
    has one fingerprint however it is wrapped or cut. The root mean square of two fingerprints'
    differences estimates the parameters' distance (Achlioptas, JCSS 66, 2003). All ranks must call
    this: projections of shards are added up, and of parameters that are `only_here`, of replicas a
    share each. Those of a pipeline's ranks add up to the model's. `beat` is called in between.
    """
    total = torch.zeros(PROJECTIONS, dtype=torch.float64)
    sums = collections.defaultdict(total.clone)  # by the groups that hold the rest of a parameter
    bits = torch.arange(PROJECTIONS, dtype=torch.uint8).unsqueeze(1)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            return None
        part, shape, groups = sharded_tensors.own_part(parameter)
        generator = torch.Generator().manual_seed(zlib.crc32(models.own_name(name).encode()))
        draws = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        draws = sharded_tensors.local(sharded_tensors.cut_like(draws, parameter))
        for numbers, drawn in zip(*(x.flatten().split(CHUNK) for x in (part, draws)), strict=True):
            values = numbers.cpu().double() * float(getattr(parameter, "only_here", 1))
            sums[groups] += 2 * ((drawn.cpu() >> bits & 1).double() @ values) - values.sum()
            beat()
    for groups, own in sums.items():
        for group in groups:  # gloo adds up in main memory
            own = own.to("cuda" if dist.get_backend(group) == "nccl" else "cpu")
            dist.all_reduce(own, group=group)
        total += own.cpu()
    return total.tolist()
