"""A step of DDP by a model: buckets by DDP's rule, overlapped with the backward.

Gradients go into buckets in the reverse order of the parameters, as in
torch.nn.parallel.DistributedDataParallel from its second step on (Li et al., arXiv:2006.15704,
section 3.2.3). Each all-reduce costs what the alpha-beta model (Hockney, Parallel Computing 20,
1994) says of a ring (Patarasuk and Yuan, JPDC 69, 2009).
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from bootcamp.costs.model_shapes import NUMBER, Layer

MIB = 2**20
BACKWARD = 2  # times the forward: two matrix products for one (arXiv:2204.02311, appendix B)


def caps(bucket_cap_mb: float | None) -> tuple[int, int]:
    """(cap of the first bucket, cap of the others) in bytes. Only the default has a small first."""
    if bucket_cap_mb is None:
        return MIB, 25 * MIB
    return int(bucket_cap_mb * MIB), int(bucket_cap_mb * MIB)


def buckets(sizes: list[int], bucket_cap_mb: float | None = None) -> list[list[int]]:
    """Which parameters share a bucket: their positions, in the order in which they are sent.

    sizes: bytes of each parameter's gradient, in the order of parameters().
    """
    cap, later = caps(bucket_cap_mb)
    filled, now, held = [], [], 0
    for position in reversed(range(len(sizes))):
        now.append(position)
        held += sizes[position]
        if held >= cap:
            filled.append(now)
            now, held, cap = [], 0, later
    return [*filled, now] if now else filled


def ring_seconds(size: float, ranks: int, bytes_per_second: float, latency: float) -> float:
    """An all-reduce of `size` bytes: 2(N-1) messages one after another, each of size/N bytes."""
    return 2 * (ranks - 1) * (latency + size / ranks / bytes_per_second)


class Span(NamedTuple):
    """When something begins and ends, in seconds since the step began."""

    began: float
    ended: float


@dataclass(frozen=True)
class Step:
    """One predicted step: forward and backward by layer, all-reduces by bucket, each in its order.

    ready: when each bucket was full. sizes: bytes of each bucket.
    """

    forward: list[Span]
    backward: list[Span]
    reduces: list[Span]
    ready: list[float]
    sizes: list[int]

    @property
    def computed(self) -> float:
        """When the backward ends."""
        return self.backward[-1].ended

    @property
    def ended(self) -> float:
        """When the optimizer can begin: the last gradient is averaged."""
        return max(self.computed, self.reduces[-1].ended)


def step(
    layers: list[Layer],
    bucket_cap_mb: float | None,
    ranks: int,
    bytes_per_second: float,
    latency: float,
    compute_seconds: float,
) -> Step:
    """Predict one step. compute_seconds: of forward and backward together.

    Layers share the time by their flops; within a layer's backward the parameters' gradients come
    one after another, after times in proportion to their numbers. An all-reduce begins when its
    bucket is full and the one before it has ended.
    """
    unit = compute_seconds / (1 + BACKWARD) / sum(layer.flops for layer in layers)
    forward = _one_by_one(0.0, [unit * layer.flops for layer in layers])
    turned = [BACKWARD * unit * layer.flops for layer in reversed(layers)]
    backward = _one_by_one(forward[-1].ended, turned)
    made = []  # when each parameter's gradient is there, in the order of parameters()
    for layer, (began, ended) in zip(layers, reversed(backward), strict=True):
        each = (ended - began) / sum(layer.numbers)
        made += [ended - each * later for later in accumulate(layer.numbers[:-1], initial=0)]
    sizes = [NUMBER * numbers for layer in layers for numbers in layer.numbers]
    filled = buckets(sizes, bucket_cap_mb)
    ready = [max(made[position] for position in bucket) for bucket in filled]
    whole = [sum(sizes[position] for position in bucket) for bucket in filled]
    reduces, free = [], 0.0
    for full, size in zip(ready, whole, strict=True):
        began = max(full, free)
        free = began + ring_seconds(size, ranks, bytes_per_second, latency)
        reduces.append(Span(began, free))
    return Step(forward, backward, reduces, ready, whole)


def _one_by_one(begin: float, seconds: list[float]) -> list[Span]:
    return [Span(*edges) for edges in pairwise(accumulate(seconds, initial=begin))]
