"""What lesson 02c counts beside its runs: a step's operators, calls, roundings, the allocator."""

import logging
from argparse import Namespace
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bootcamp.records import trace
from bootcamp.table import Table
from bootcamp.train import data, matmul, models, optimizers

MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
FLOAT32_FRACTION = 23  # bits
MIB = 2**20


def profile_table(run, shown: int = 8) -> Table:
    """The operators of a run's traced step that took longest, and all others together."""
    found = list(trace.operators(run.folder / "ranks" / "0.trace.json").items())
    others = [of for _, of in found[shown:]]
    rest = (sum(calls for calls, _ in others), sum(seconds for _, seconds in others))
    everything = sum(seconds for _, (_, seconds) in found)
    rows = [
        {"operator": name, "calls": calls, "own ms": 1e3 * seconds, "%": 100 * seconds / everything}
        for name, (calls, seconds) in [*found[:shown], (f"{len(others)} others", rest)]
    ]
    return Table(rows, f"One step of {run.label}, traced here; own: without what it calls")


def share_of_products(run) -> float:
    """The share of a traced step's operator time that is matrix products, between 0 and 1."""
    found = trace.operators(run.folder / "ranks" / "0.trace.json")
    products = sum(found[name][1] for name in MATRIX_PRODUCTS if name in found)
    return products / sum(seconds for _, seconds in found.values())


class Calls(TorchDispatchMode):
    """Counts the operators that Python calls; what an operator calls inside is not seen."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def optimizer_step(kind: str, **how) -> Callable[[], None]:
    """The step of an optimizer on a tiny GPT with gradients; how: foreach=, fused=.

    It has taken one step already, so its state is there.
    """
    torch.set_num_threads(1)
    flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=4)
    flags.optimizer, flags.lr = kind, 1e-3
    model = models.build(flags)
    inputs, targets = data.Batches(flags, rank=0, world=1)(0)
    models.loss(model(inputs), targets).backward()
    optimizer_class, settings = optimizers.choose(flags)
    optimizer = optimizer_class(model.parameters(), **settings, **how)
    optimizer.step()
    return optimizer.step


def calls(step: Callable[[], None]) -> int:
    """How many operators one call of a function calls."""
    with Calls() as counter:
        step()
    return counter.count


def seconds(step: Callable[[], None]) -> float:
    """The shortest of several calls on one core."""
    return matmul.fastest_seconds(step, "cpu")


def pipeline_seconds(read: float, train: float, workers: int, cores: int) -> float:
    """Seconds of a batch if nothing but work counts: reading it takes `read`, training `train`.

    The longest of three: the training process, a worker's share of the reading, and all the work
    spread over the cores. Without workers one process does both.
    """
    if workers == 0:
        return read + train
    return max(train, read / workers, (read + train) / min(cores, workers + 1))


def rounded(numbers: torch.Tensor, fraction: int) -> torch.Tensor:
    """float32 numbers rounded to so many bits of fraction, to the nearest, ties to even.

    10 bits are TF32's and 7 bfloat16's. Finite numbers only.
    """
    dropped = FLOAT32_FRACTION - fraction
    bits = numbers.view(torch.int32)
    is_odd = (bits >> dropped) & 1
    return ((bits + (1 << (dropped - 1)) - 1 + is_odd) >> dropped << dropped).view(torch.float32)


def product_errors(size: int = 256) -> dict[str, float]:
    """How far a matrix product is off if its inputs are rounded first, relative to the exact one.

    The products themselves are computed in float64, so that only the rounding counts.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, size, size, generator=generator)
    exact = a.double() @ b.double()
    formats = {"TF32": 10, "bfloat16": 7}
    found = {
        name: rounded(a, bits).double() @ rounded(b, bits).double()
        for name, bits in formats.items()
    }
    found = {"float32": (a @ b).double(), **found}
    return {name: ((c - exact).norm() / exact.norm()).item() for name, c in found.items()}


def graphs_of(function: Callable, *calls: tuple) -> tuple[list[int], str]:
    """How many graphs torch.compile has made of a function after each of these calls, and why.

    Why: what it could not record, "" if nothing. The backend is "eager": it runs a graph as it is,
    so nothing is compiled and little time passes.
    """
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()
    counters.clear()
    compiled, made = torch.compile(function, backend="eager"), []
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    logger.setLevel(logging.ERROR)  # its warning is what `why` says
    try:
        for arguments in calls:
            compiled(*arguments)
            made.append(counters["stats"]["unique_graphs"])
    finally:
        logger.setLevel(level)
    reasons = [reason.partition("\n")[0] for reason in counters["graph_break"]]
    return made, "; ".join(reasons)


def pays_off_after(compiling: float, plain: float, compiled: float) -> float | None:
    """Steps after which compiling has paid off; None if a compiled step is no faster."""
    return compiling / (plain - compiled) if compiled < plain else None


class Cache:
    """What PyTorch's CUDA allocator keeps, simplified: requests of more than 1 MiB, in MiB.

    A segment is what the driver gives: 20 for a request below 10, else the request. A request takes
    the smallest free block in which it fits and leaves the rest as a block, if that is more than 1.
    Freed blocks join free neighbours of their segment. If the driver has no more, segments that are
    free from end to end go back to it (PyTorch documentation, *CUDA semantics*, and the comment at
    the top of CUDACachingAllocator.cpp; from memory).
    """

    def __init__(self, memory: int):
        self.memory, self.segments = memory, []  # each a list of [size, in use]

    @property
    def reserved(self) -> int:
        return sum(size for segment in self.segments for size, _ in segment)

    @property
    def allocated(self) -> int:
        return sum(size for segment in self.segments for size, used in segment if used)

    def take(self, size: int) -> list:
        """A block of this size, in use. Raises MemoryError if there is none."""
        free = [
            (block[0], segment, block)
            for segment in self.segments
            for block in segment
            if not block[1] and block[0] >= size
        ]
        if not free:
            return self._from_driver(size)
        _, segment, block = min(free, key=lambda found: found[0])
        if (rest := block[0] - size) > 1:
            place = next(place for place, own in enumerate(segment) if own is block)
            segment.insert(place + 1, [rest, False])
            block[0] = size
        block[1] = True
        return block

    def _from_driver(self, size: int) -> list:
        wanted = 20 if size < 10 else size
        if self.reserved + wanted > self.memory:
            self.segments = [s for s in self.segments if any(used for _, used in s)]
        if self.reserved + wanted > self.memory:
            free = self.reserved - self.allocated
            raise MemoryError(f"no block of {size} MiB, although {free} MiB of the cache are free")
        self.segments.append([[wanted, False]])
        return self.take(size)

    def give(self, block: list) -> None:
        """Free a block."""
        segment = next(s for s in self.segments if any(own is block for own in s))
        block[1] = False
        joined = []
        for own in segment:
            if joined and not own[1] and not joined[-1][1]:
                joined[-1][0] += own[0]
            else:
                joined.append(own)
        segment[:] = joined
