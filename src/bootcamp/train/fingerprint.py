"""Calculate a few numbers that differ when two models' parameters differ, however sharded."""

import zlib

import torch

from bootcamp.train import environment, models, sharded_tensors

PROJECTIONS = 8
CHUNK = 1 << 17  # numbers: their signs in all directions are 8 MiB


def fingerprint(model: torch.nn.Module, beat=lambda: None) -> list[float] | None:
    """Project all parameters on eight random directions, in float64; None on the meta device.

    Directions have entries of +1 and -1 from a generator seeded by the parameter's name, so a model
    has one fingerprint however it is wrapped or cut. The root mean square of two fingerprints'
    differences estimates the parameters' distance (Achlioptas, JCSS 66, 2003). All ranks must call
    this: shards are gathered, and parameters that are `only_here` are added up, of replicas a share
    each. The fingerprints of a pipeline's ranks add up to the model's. `beat` is called in between.
    """
    total = torch.zeros(PROJECTIONS, dtype=torch.float64)
    only_here = torch.zeros_like(total)
    bits = torch.arange(PROJECTIONS, dtype=torch.uint8).unsqueeze(1)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            return None
        sums = only_here if hasattr(parameter, "only_here") else total
        generator = torch.Generator().manual_seed(zlib.crc32(models.own_name(name).encode()))
        for chunk in sharded_tensors.gather(parameter).flatten().split(CHUNK):
            values = chunk.cpu().double() * float(getattr(parameter, "only_here", 1))
            draws = torch.randint(256, (len(values),), dtype=torch.uint8, generator=generator)
            sums += (draws >> bits & 1).double().mul_(2).sub_(1) @ values
            beat()
    if only_here.any():
        total += sum(environment.gather_objects(only_here))
    return total.tolist()
