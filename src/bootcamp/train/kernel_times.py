"""How long a GPT's and an MLP's kernels take on one rank, by size: `kernel_times.measure()`.

Each is timed as training calls it: through its module, with its backward, on copies that have
weights of their own, results kept from forward to backward. In CPU seconds of this process, so that
other processes' turns do not count.
"""

import itertools
import time

import torch
from torch import nn
from torch.nn import functional

from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.train.models.gpt import Attention, Embedding

COPIES, LEAST, MOST, BUDGET = 3, 3, 25, 0.06  # copies at once, rounds, seconds for a size
PARAMETERS = 12  # of an optimizer: its own beginning and end are spread over them
HEADS, ROW = 4, 128


class Core(Attention):
    """Attention between its projections: heads apart, scores, heads together."""

    def __init__(self):
        super().__init__(HEADS, HEADS)
        self.query = self.key = self.value = self.out = nn.Identity()

    def forward(self, x):
        """x: (batch, context, width)."""
        return super().forward(x)


def _linear(tokens: int, inputs: int, outputs: int):
    return nn.Linear(inputs, outputs, bias=False), torch.randn(tokens, inputs)


def _row(numbers: int) -> torch.Tensor:
    return torch.randn(numbers // ROW, ROW)


def _embedding(tokens: int, width: int):
    return Embedding(width, 64), torch.randint(VOCABULARY, (tokens // 64, 64))


def _attention(heads: int, context: int, width: int):
    """heads: of all samples together. width: of a head."""
    return Core(), torch.randn(heads // HEADS, context, HEADS * width)


def _loss(tokens: int):
    targets = torch.randint(VOCABULARY, (tokens,))
    return lambda scores: functional.cross_entropy(scores, targets), torch.randn(tokens, VOCABULARY)


def _bias(numbers: int):
    bias = nn.Parameter(torch.zeros(ROW))
    return lambda x: x + bias, _row(numbers)


NUMBERS, WIDTHS = (2**13, 2**17, 2**21), (64, 128, 256, 1024)
# kind: how a copy is made from its sizes, and the sizes along each axis
KINDS = {
    "linear": (_linear, [(128, 512, 2048), WIDTHS, WIDTHS]),
    "norm": (lambda numbers: (nn.LayerNorm(ROW), _row(numbers)), [NUMBERS]),
    "gelu": (lambda numbers: (functional.gelu, _row(numbers)), [NUMBERS]),
    "relu": (lambda numbers: (nn.ReLU(), _row(numbers)), [NUMBERS]),
    "add": (lambda numbers: (lambda x: x + 1.0, _row(numbers)), [NUMBERS]),
    "bias": (_bias, [NUMBERS]),
    "attention": (_attention, [(8, 64), (32, 128, 256), (16, 32, 64)]),
    "embedding": (_embedding, [(128, 2048), (64, 512)]),
    "loss": (_loss, [(128, 512, 2048)]),
}
TENSORS = (2**6, 2**12, 2**16, 2**20)  # numbers of a parameter that AdamW updates


def measure() -> dict:
    """{kind: {"axes", "seconds": {"sizes with commas": [forward, backward]}}}, medians."""
    found = {}
    for kind, (make, axes) in KINDS.items():
        seconds = {_key(sizes): _timed(make, sizes) for sizes in keys(axes)}
        found[kind] = {"axes": axes, "seconds": seconds}
    updates = {_key([numbers]): [_adamw(numbers), 0.0] for numbers in TENSORS}
    found["adamw"] = {"axes": [TENSORS], "seconds": updates}
    return found


def keys(axes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Every combination of sizes."""
    return list(itertools.product(*axes))


def _key(sizes) -> str:
    return ",".join(map(str, sizes))


def _timed(make, sizes: tuple[int, ...]) -> list[float]:
    """Median CPU seconds of a forward and of a backward."""
    copies = [make(*sizes) for _ in range(COPIES)]
    forwards, backwards = [], []
    began = time.perf_counter()
    while len(forwards) < LEAST or (len(forwards) < MOST and time.perf_counter() - began < BUDGET):
        for module, given in copies:
            given.grad = None
            given.requires_grad_(given.is_floating_point())
            if isinstance(module, nn.Module):
                module.zero_grad()
        start = time.process_time()
        results = [module(given) for module, given in copies]
        middle = time.process_time()
        gradients = [torch.ones_like(result) for result in results]
        again = time.process_time()
        torch.autograd.backward(results, gradients)
        forwards.append((middle - start) / COPIES)
        backwards.append((time.process_time() - again) / COPIES)
        del results
    return [_median(forwards), _median(backwards)]


def _adamw(numbers: int) -> float:
    """Median CPU seconds of AdamW for one parameter."""
    parameters = [nn.Parameter(torch.randn(numbers)) for _ in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.randn(numbers)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    seconds = []
    for _ in range(LEAST + 5):
        start = time.process_time()
        optimizer.step()
        seconds.append((time.process_time() - start) / PARAMETERS)
    return _median(seconds[2:])


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
