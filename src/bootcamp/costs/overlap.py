"""Overlap of sending with computing, by formula: DDP's buckets in time, and ratios of two times.

Buckets are those of torch's DistributedDataParallel from its second step on (Li et al.,
arXiv:2006.15704, section 3.2.3): parameters in reverse order. A ratio is seconds of computing over
seconds of sending: above 1 what is sent can hide behind what is computed, if both go on at once.
Between hosts a ring has the bytes per second of all network cards of a host, since it leaves each
host once. The ratio of a pipeline's stage is 1 over its bubble (bootcamp.costs.pipeline_schedules).
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from bootcamp.costs.model_shapes import FLOAT32_BYTES, Layer
from bootcamp.costs.sharding import ring_bytes

MIB = 2**20
BACKWARD = 2  # times the forward: two matrix products for one (arXiv:2204.02311, appendix B)


def fill_buckets(sizes: list[int], bucket_cap_mb: float | None = None) -> list[list[int]]:
    """Return the positions of each bucket's parameters as they are sent. sizes: in bytes.

    By torch's default (None) the first bucket has 1 MiB, the others 25.
    """
    cap, later = (MIB, 25 * MIB) if bucket_cap_mb is None else [int(bucket_cap_mb * MIB)] * 2
    filled, now, held = [], [], 0
    for position in reversed(range(len(sizes))):
        now.append(position)
        held += sizes[position]
        if held >= cap:
            filled.append(now)
            now, held, cap = [], 0, later
    return [*filled, now] if now else filled


def ring_seconds(size: float, ranks: int, bytes_per_second: float, latency: float) -> float:
    """Predict an all-reduce: 2(N-1) messages one after another, each of size/N bytes."""
    return 2 * (ranks - 1) * (latency + size / ranks / bytes_per_second)


class Span(NamedTuple):
    """A begin and an end, in seconds since the step began."""

    began: float
    ended: float


@dataclass(frozen=True)
class PredictedStep:
    """The spans of one step: forward and backward by layer, all-reduces by bucket, in order."""

    forward: list[Span]
    backward: list[Span]
    reduces: list[Span]
    ready: list[float]  # when each bucket was full
    sizes: list[int]  # bytes of each bucket

    @property
    def backward_end(self) -> float:
        return self.backward[-1].ended

    @property
    def ended(self) -> float:
        """Return when the last gradient is averaged and the optimizer can begin."""
        return max(self.backward_end, self.reduces[-1].ended)


def predict_step(
    layers: list[Layer],
    bucket_cap_mb: float | None,
    ranks: int,
    bytes_per_second: float,
    latency: float,
    compute_seconds: float,
) -> PredictedStep:
    """Predict one step. compute_seconds: of forward and backward together.

    Layers share the time by their flops, gradients that of a layer's backward by their numbers. An
    all-reduce begins when its bucket is full and the one before it has ended.
    """
    unit = compute_seconds / (1 + BACKWARD) / sum(layer.flops for layer in layers)
    forward = _one_by_one(0.0, [unit * layer.flops for layer in layers])
    turned = [BACKWARD * unit * layer.flops for layer in reversed(layers)]
    backward = _one_by_one(forward[-1].ended, turned)
    made = []  # when each parameter's gradient is there, in the order of parameters()
    for layer, (began, ended) in zip(layers, reversed(backward), strict=True):
        each = (ended - began) / sum(layer.numbers)
        made += [ended - each * later for later in accumulate(layer.numbers[:-1], initial=0)]
    sizes = [FLOAT32_BYTES * numbers for layer in layers for numbers in layer.numbers]
    filled = fill_buckets(sizes, bucket_cap_mb)
    ready = [max(made[position] for position in bucket) for bucket in filled]
    whole = [sum(sizes[position] for position in bucket) for bucket in filled]
    reduces, free = [], 0.0
    for full, size in zip(ready, whole, strict=True):
        began = max(full, free)
        free = began + ring_seconds(size, ranks, bytes_per_second, latency)
        reduces.append(Span(began, free))
    return PredictedStep(forward, backward, reduces, ready, whole)


def _one_by_one(begin: float, seconds: list[float]) -> list[Span]:
    return [Span(*edges) for edges in pairwise(accumulate(seconds, initial=begin))]


def fsdp_ratio(
    tokens: float,  # of one micro-batch on a rank
    flops_per_second: float,
    bytes_per_second: float,
    reduced: int = 2,  # bytes of a gradient's number
    recompute: bool = False,
) -> float:
    """Return the ratio of a step of FSDP over many ranks.

    Each parameter costs 2 operations a token in the forward pass and 4 in the backward, is gathered
    in each in 16 bits and its gradient is reduced.
    """
    operations = (8 if recompute else 6) * tokens
    return operations / (2 * 2 + reduced) * bytes_per_second / flops_per_second


def tensor_ratio(
    width: float,
    ranks: int,
    flops_per_second: float,
    bytes_per_second: float,
    recompute: bool = False,
) -> float:
    """Return the ratio of a transformer's block whose matrices `ranks` ranks share, in 16 bits.

    24 operations for each token and width^2 in the forward pass, and two all-reduces of a row of
    `width` numbers in each pass (arXiv:1909.08053): the tokens drop out.
    """
    passes, sums = (4, 6) if recompute else (3, 4)
    operations = 24 * passes * width / ranks
    sent = sums * ring_bytes("all-reduce", 2, ranks)
    return operations / sent * bytes_per_second / flops_per_second


def share_if_at_once(ratio: float) -> float:
    """Return the most of a rank's FLOP/s that is reached where it sends while it computes."""
    return min(1.0, ratio)


def share_if_in_turn(ratio: float) -> float:
    """Return the same where it computes, then waits: m / (m + p - 1) in a pipeline."""
    return ratio / (1 + ratio)
