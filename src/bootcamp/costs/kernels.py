"""Seconds of one layer's and the ends' kernels on a GPU, and of launching them from the host.

A matrix product is cut into tiles, and tiles run in waves over the multiprocessors: the last wave
may be nearly empty (NVIDIA, Matrix Multiplication Background User's Guide). Everything between
the products waits for memory, so its bytes are counted.
"""

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from bootcamp.costs.hardware import Gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.setting import Plan
from bootcamp.costs.stacks import Constants

# rows and columns of a tile, and what share of the best tile's speed it has: smaller tiles read
# more for each product (the same guide, figure on tile sizes; rounded)
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6))
PROLOGUE = 96  # steps of the inner dimension that pass before a tile's products begin, and after
BETWEEN_KERNELS = 3e-6  # seconds from one kernel's end to the next one's begin on the GPU
KERNELS = (17, 36)  # of a layer's forward and backward, the matrix products among them
# bytes for each number of attention's matrix beside what its products read and write, forward and
# backward: softmax 4 and 6, dropout with a mask of 1 byte 5 and 5; unfused, mask and scale too
MATRIX = {"softmax": (9, 11), "unfused": (13, 21)}
# numbers of 2 bytes that a layer reads and writes between its products, forward and backward: times
# hidden and whole on every tensor rank without SP, times hidden and split, times the MLP's inner
# width and split. fused: a GPT with fused norms and dropout. eager: a gated MLP, and RMS norms and
# rotary positions in float32 operation by operation. compiled: the same, neighbours in one kernel.
BETWEEN = {
    "fused": ((12, 10, 2), (14, 10, 3)),
    "eager": ((40, 16, 5), (70, 28, 8)),
    "compiled": ((6, 5, 3), (12, 8, 5)),
}
ADAM = 30  # bytes for each parameter: four float32 read, three written, the 16 bit copy written
LOSS = 32  # bytes for each score: read, written in float32, read again; backward the same


class Passes(NamedTuple):
    """Seconds of a layer's forward and backward."""

    forward: float
    backward: float

    def __add__(self, other):
        return Passes(self.forward + other.forward, self.backward + other.backward)


def product(gpu: Gpu, m: float, n: float, k: float, peak: float, bandwidth: float, count=1):
    """Seconds of `count` products of (m, k) and (k, n) in 16 bit.

    peak: FLOP/s of the best tile's products. bandwidth: bytes/s.
    """
    work = tiled(gpu.multiprocessors, m, n, k, count)
    return max(work / peak, count * 2 * (m * k + k * n + m * n) / bandwidth)


@lru_cache(maxsize=100_000)
def tiled(units: int, m: float, n: float, k: float, count: float) -> float:
    """FLOPs of as many full waves of tiles as a product needs, with the best of TILES."""
    best = float("inf")
    for rows, columns, speed in TILES:
        waves = ceil(count * ceil(m / rows) * ceil(n / columns) / units)
        best = min(best, waves * units * 2 * rows * columns * (k + PROLOGUE) / speed)
    return best


def linear(gpu: Gpu, tokens: float, inputs: float, outputs: float, peak: float, bandwidth: float):
    """Forward and backward of a linear layer: one product, and two."""
    forward = product(gpu, tokens, outputs, inputs, peak, bandwidth)
    to_inputs = product(gpu, tokens, inputs, outputs, peak, bandwidth)
    return Passes(forward, to_inputs + product(gpu, inputs, outputs, tokens, peak, bandwidth))


def layer(gpu: Gpu, shape: Model, plan: Plan, c: Constants) -> Passes:
    """A layer's kernels for one micro-batch on one rank, without communication."""
    t, h, bandwidth = plan.tensor, shape.hidden, gpu.hbm * c.memory
    tokens = plan.micro_batch * shape.sequence / plan.context
    peak = _peak(gpu, plan, c)
    total = linear(gpu, tokens, h, shape.qkv / t, peak, bandwidth)
    total += linear(gpu, tokens, shape.attended / t, h, peak, bandwidth)
    total += mlp(gpu, shape, plan, c, h, (2 if shape.gated else 1) * shape.inner / t)
    total += mlp(gpu, shape, plan, c, shape.inner / t, h)
    total += attention(gpu, shape, plan, c)
    total += between(shape, plan, tokens, bandwidth)
    return total + Passes(*(BETWEEN_KERNELS * count for count in KERNELS))


def mlp(gpu: Gpu, shape: Model, plan: Plan, c: Constants, inputs: float, outputs: float) -> Passes:
    """One of an MLP's linear layers, for each expert that a rank holds."""
    tokens = plan.micro_batch * shape.sequence / plan.context
    tokens *= shape.chosen * plan.expert / shape.experts
    each = linear(gpu, tokens, inputs, outputs, _peak(gpu, plan, c), gpu.hbm * c.memory)
    here = shape.experts / plan.expert
    return Passes(here * each.forward, here * each.backward)


def last_product(gpu: Gpu, shape: Model, plan: Plan, c: Constants) -> float:
    """Seconds of the product that ends a layer's forward."""
    return mlp(gpu, shape, plan, c, shape.inner / plan.tensor, shape.hidden).forward


def _peak(gpu: Gpu, plan: Plan, c: Constants) -> float:
    """FLOP/s of the layers' products in the plan's precision."""
    casts = c.fp8 if plan.precision == "fp8" else 1
    return gpu.peak_of(plan.precision) * c.clock * c.matmul * casts


def _peak_16_bit(gpu: Gpu, plan: Plan, c: Constants) -> float:
    """The same of attention and the head, which fp8 leaves in 16 bit."""
    return gpu.peak_of("fp32" if plan.precision == "fp32" else "bf16") * c.clock * c.matmul


def attention(gpu: Gpu, shape: Model, plan: Plan, c: Constants) -> Passes:
    """Scores, softmax and their product with the values, for a rank's heads.

    Fused, a causal forward computes half of the products, a backward two and a half times as much
    (Dao, arXiv:2307.08691). Else the matrix is read and written by each kernel (MATRIX).
    """
    heads = plan.micro_batch * shape.heads / plan.tensor
    s, width, bandwidth = shape.sequence, shape.of_head, gpu.hbm * c.memory
    if plan.attention == "fused":
        rows = s / plan.context
        peak = _peak_16_bit(gpu, plan, c) / c.matmul * c.attention
        forward = 4 * heads * rows * s * width / 2 / peak
        return Passes(forward, 2.5 * forward)
    peak = _peak_16_bit(gpu, plan, c)
    products = product(gpu, s, s, width, peak, bandwidth, heads)
    products += product(gpu, s, width, s, peak, bandwidth, heads)
    forward, backward = (heads * s * s * number / bandwidth for number in MATRIX[plan.attention])
    return Passes(products + forward, 2 * products + backward)


def between(shape: Model, plan: Plan, tokens: float, bandwidth: float) -> Passes:
    """Norms, residuals, dropout, biases, positions and the activation: bytes read and written."""
    t = plan.tensor
    kind = ("compiled" if plan.compiled else "eager") if shape.gated else "fused"
    inner = shape.inner * (shape.chosen if shape.experts > 1 else 1)
    outside = t if plan.sequence else 1
    seconds = [
        2 * tokens * (whole * shape.hidden / outside + (split * shape.hidden + act * inner) / t)
        for whole, split, act in BETWEEN[kind]
    ]
    return Passes(*(each / bandwidth for each in seconds))


def head(gpu: Gpu, shape: Model, plan: Plan, c: Constants) -> float:
    """Seconds of the head and the loss for one micro-batch, forward and backward."""
    if not shape.vocabulary:
        return 0.0
    tokens = plan.micro_batch * shape.sequence / plan.context
    columns = ceil(shape.vocabulary / 128 / plan.tensor) * 128
    bandwidth = gpu.hbm * c.memory
    passes = linear(gpu, tokens, shape.hidden, columns, _peak_16_bit(gpu, plan, c), bandwidth)
    return sum(passes) + LOSS * tokens * columns / bandwidth


def embedding(gpu: Gpu, shape: Model, plan: Plan, c: Constants) -> float:
    """Seconds of looking tokens up and adding positions, forward and backward."""
    if not shape.vocabulary:
        return 0.0
    tokens = plan.micro_batch * shape.sequence / plan.context
    return 24 * tokens * shape.hidden / (gpu.hbm * c.memory)


def longer(device: float, host: float, sharpness: int = 5) -> float:
    """The longer of two times that go on side by side, and a little more where they are close."""
    most = max(device, host)
    if most <= 0:
        return 0.0
    return most * ((device / most) ** sharpness + (host / most) ** sharpness) ** (1 / sharpness)
