"""Seconds of a layer's kernels and of a model's ends on a GPU, without communication.

A matrix product is cut into tiles, and tiles run in waves over the multiprocessors: the last wave
may be nearly empty (NVIDIA, Matrix Multiplication Background User's Guide). Everything between
the products waits for memory, so its bytes are counted.
"""

from functools import cached_property, lru_cache
from math import ceil
from typing import NamedTuple

from bootcamp.costs.fitted_constants import Constants
from bootcamp.costs.hardware import Gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plans import Plan

# rows and columns of a tile, and what share of the best tile's speed it has: smaller tiles read
# more for each product (the same guide, figure on tile sizes; rounded)
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6))
PROLOGUE = 96  # steps of the inner dimension that pass before a tile's products begin, and after
BETWEEN_KERNELS = 3e-6  # seconds from one kernel's end to the next one's begin on the GPU
KERNELS = (17, 36)  # of a layer's forward and backward, the matrix products among them
# bytes for each number of attention's matrix beside what its products read and write, forward and
# backward: softmax 4 and 6, dropout with a mask of 1 byte 5 and 5; unfused, mask and scale too
MATRIX = {"softmax": (9, 11), "unfused": (13, 21)}
# times FlashAttention-2's seconds, forward and backward: 1.3 to 1.5 and 2 for the first in Triton
# (arXiv:2307.08691), while the third is 1.5 to 2 and 1.5 to 1.75 times as fast (arXiv:2407.08608)
FLASH = {"fused": (1.0, 1.0), "flash 1": (1.4, 2.0), "flash 3": (0.58, 0.62)}
# Numbers of 2 bytes that a layer reads and writes between its products for a token, forward and
# backward: hidden times the first (which sequence parallelism alone divides among tensor ranks) and
# the second, the MLP's inner width times the third (both divided). fused: a GPT with fused norms
# and dropout. eager: a gated MLP, RMS norms and rotary positions in float32, operation by
# operation. compiled: the same, neighbours in one kernel.
BETWEEN = {
    "fused": ((12, 10, 2), (14, 10, 3)),
    "eager": ((40, 16, 5), (70, 28, 8)),
    "compiled": ((6, 5, 3), (12, 8, 5)),
}
LOSS = 32  # bytes for each score: read, written in float32, read again; backward the same
LOOKED_UP = 24  # bytes for each number of a token's embedding and its position, both passes


class Passes(NamedTuple):
    """Seconds of a layer's forward and backward."""

    forward: float
    backward: float

    def __add__(self, other):
        return Passes(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: float):
        return Passes(self.forward * times, self.backward * times)


class Kernels:
    """Seconds of the kernels that one rank runs for one micro-batch."""

    def __init__(self, gpu: Gpu, model: Model, plan: Plan, c: Constants):
        self.model, self.plan = model, plan
        self.tokens = plan.micro_batch * model.sequence / plan.context
        self.multiprocessors, self.bandwidth = gpu.multiprocessors, gpu.hbm * c.memory
        casts = c.fp8 if plan.precision == "fp8" else 1
        self.peak = gpu.peak_of(plan.precision) * c.clock * c.matmul * casts
        # fp8 leaves attention and the head in 16 bit
        without_fp8 = gpu.peak_of("fp32" if plan.precision == "fp32" else "bf16")
        self.peak_16_bit = without_fp8 * c.clock * c.matmul
        self.peak_attention = without_fp8 * c.clock * c.attention

    @cached_property
    def layer(self) -> Passes:
        """All kernels of one layer."""
        model, t = self.model, self.plan.tensor
        products = [
            self._linear(self.tokens, model.hidden, model.qkv_width / t, self.peak),
            self._linear(self.tokens, model.attention_width / t, model.hidden, self.peak),
            self._experts(model.hidden, (2 if model.gated else 1) * model.inner / t),
            self._experts(model.inner / t, model.hidden),
        ]
        launched = Passes(*(BETWEEN_KERNELS * count for count in KERNELS))
        return sum(products, self.attention) + self.between + launched

    @cached_property
    def attention(self) -> Passes:
        """Scores, softmax and their product with the values, for a rank's heads.

        Fused, a causal forward computes half of the products, a backward two and a half times as
        much (Dao, arXiv:2307.08691). Else each kernel reads and writes the matrix.
        """
        heads = self.plan.micro_batch * self.model.heads / self.plan.tensor
        length, width = self.model.sequence, self.model.width_of_head
        if slower := FLASH.get(self.plan.attention):
            each = 2 * heads * length**2 / self.plan.context * width / self.peak_attention
            return Passes(each * slower[0], 2.5 * each * slower[1])
        scores = self._product(length, length, width, self.peak_16_bit, heads)
        both = scores + self._product(length, width, length, self.peak_16_bit, heads)
        each = heads * length * length / self.bandwidth
        forward, backward = (each * number for number in MATRIX[self.plan.attention])
        return Passes(both + forward, 2 * both + backward)

    @cached_property
    def between(self) -> Passes:
        """Norms, residuals, dropout, biases, positions and the activation."""
        model, plan, t = self.model, self.plan, self.plan.tensor
        kind = ("compiled" if plan.compile else "eager") if model.gated else "fused"
        inner = model.inner * (model.chosen if model.experts > 1 else 1)
        outside = t if plan.sequence_parallel else 1
        numbers = [
            whole * model.hidden / outside + (split * model.hidden + wide * inner) / t
            for whole, split, wide in BETWEEN[kind]
        ]
        return Passes(*numbers) * (2 * self.tokens / self.bandwidth)

    def embedding(self) -> float:
        """Looking tokens up and adding positions, both passes."""
        return LOOKED_UP * self.tokens * self.model.hidden / self.bandwidth

    def head(self) -> float:
        """The head and the loss, both passes."""
        columns = ceil(self.model.vocabulary / 128 / self.plan.tensor) * 128
        passes = self._linear(self.tokens, self.model.hidden, columns, self.peak_16_bit)
        return sum(passes) + LOSS * self.tokens * columns / self.bandwidth

    def recompute_seconds(self, forward: float) -> float:
        """Seconds to compute a layer's activations again. forward: seconds, with its waits."""
        attention, between = self.attention.forward, self.between.forward
        last = self._experts(self.model.inner / self.plan.tensor, self.model.hidden)
        return {
            "none": 0.0,
            "selective": attention,
            # attention and every second product are kept, what lies between them is not
            "selective op": 0.5 * max(0.0, forward - attention - between) + between,
            # the last product's output is not needed
            "full": forward - last.forward * self.plan.early_stop,
        }[self.plan.recompute]

    def _experts(self, inputs: float, outputs: float) -> Passes:
        """One of an MLP's linear layers, for each expert that a rank holds."""
        model, ranks = self.model, self.plan.expert
        tokens = self.tokens * (model.chosen * ranks / model.experts)
        return self._linear(tokens, inputs, outputs, self.peak) * (model.experts / ranks)

    def _linear(self, tokens: float, inputs: float, outputs: float, peak: float) -> Passes:
        """One product forward; backward one for the inputs and one for the weights."""
        forward = self._product(tokens, outputs, inputs, peak)
        to_inputs = self._product(tokens, inputs, outputs, peak)
        return Passes(forward, to_inputs + self._product(inputs, outputs, tokens, peak))

    def _product(self, m: float, n: float, k: float, peak: float, count: float = 1) -> float:
        """`count` products of (m, k) and (k, n) in 16 bit. peak: FLOP/s of the best tile's."""
        work = count_tiled_flops(self.multiprocessors, m, n, k, count)
        return max(work / peak, count * 2 * (m * k + k * n + m * n) / self.bandwidth)


@lru_cache(maxsize=100_000)
def count_tiled_flops(multiprocessors: int, m: float, n: float, k: float, count: float) -> float:
    """Count the FLOPs of as many full waves of tiles as a product needs, with the best of TILES."""
    flops = []
    for rows, columns, speed in TILES:
        waves = ceil(count * ceil(m / rows) * ceil(n / columns) / multiprocessors)
        tiles = waves * multiprocessors
        flops.append(tiles * 2 * rows * columns * (k + PROLOGUE) / speed)
    return min(flops)
