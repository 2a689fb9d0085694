"""python -m bootcamp.train.benchmark --device cpu --dtype float32 --cores 1 --out FILE

Measure the FLOP/s that one rank's cores or GPU reach in a matrix product. With `--size small
--batch 8`, measure the memory bandwidth and each operation of a GPT too, for a roofline model
(Williams, Waterman and Patterson, CACM 52(4), 2009). Times are those of the fastest call: other
processes make calls slower, never faster.
"""

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional

from bootcamp import machine
from bootcamp.files import write_json
from bootcamp.train import config
from bootcamp.train.models import gpt

MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
CALLS, FEWEST_CALLS, ENOUGH_SECONDS = 9, 3, 1.0
STREAMED_BYTES = {"cpu": 2**28, "cuda": 2**30}  # several times what a last-level cache holds


def time_fastest_call(run: Callable[[], object], device: str, most: int = CALLS) -> float:
    """Time the fastest of `most` calls after a warm-up call, of three where calls are slow."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    while len(seconds) <= FEWEST_CALLS or (len(seconds) <= most and sum(seconds) < ENOUGH_SECONDS):
        wait()
        began = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def measure_flops_per_second(device: str, dtype: str, most: int = CALLS) -> float:
    """Measure a square matrix product; a multiplication and an addition count as two."""
    size = MATRIX_SIZE[device]
    matrix = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    return 2 * size**3 / time_fastest_call(lambda: matrix @ matrix, device, most)


def measure_stream_bytes_per_second(device: str) -> float:
    """Measure memory bandwidth: bytes read and written per second by scaling a large tensor.

    In place: a CPU that writes elsewhere first reads what it overwrites (STREAM, McCalpin 1995).
    """
    numbers = torch.ones(STREAMED_BYTES[device] // 4, device=device)
    return 2 * numbers.nbytes / time_fastest_call(lambda: numbers.mul_(1.0), device, FEWEST_CALLS)


def read_cache_bytes(device: str) -> int | None:
    """Read the size of the last-level cache; None where unknown."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")  # Linux: "32768K"
    return max((int(path.read_text().rstrip("K\n")) * 1024 for path in sizes), default=None)


def measure(device: str, dtype: str, size: str, batch: int) -> dict:
    """Measure peak, bandwidth, cache and operations of this process's cores or GPU.

    The roof is measured again between the operations, and the best counts: the load may change.
    """
    cache = read_cache_bytes(device)
    peaks, bandwidths, measured = [], [], []
    with torch.no_grad():
        for operation in make_operations(size, batch, getattr(torch, dtype), device):
            peaks.append(measure_flops_per_second(device, dtype, FEWEST_CALLS))
            bandwidths.append(measure_stream_bytes_per_second(device))
            seconds = time_fastest_call(operation.run, device)
            work = {"name": operation.name, "flops": operation.flops, "bytes": operation.bytes}
            fits = cache is not None and operation.bytes <= cache
            rates = {"intensity": operation.flops / operation.bytes}
            rates["achieved_flops_per_second"] = operation.flops / seconds
            measured.append({**work, "seconds": seconds, **rates, "fits_in_cache": fits})
    model = {"model": "gpt", "size": size, "global_batch": batch, "operations": measured}
    roof = {"peak_flops_per_second": max(peaks), "bandwidth_bytes_per_second": max(bandwidths)}
    return model | roof | {"cache_bytes": cache}


class Operation(NamedTuple):
    """One operation of the model and its least cost by formula.

    flops: an addition, a multiplication, a root and a function such as exp or erf count as one
    each. tensors: the operands, read once, and the results, written once.
    """

    name: str
    flops: int
    tensors: tuple[torch.Tensor, ...]
    run: Callable[[], object]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def make_operations(size: str, batch: int, dtype, device: str) -> Iterator[Operation]:
    """Make the operations of a GPT's forward and optimizer, each as the model calls it."""
    width, heads, context = (gpt.SIZES[size][name] for name in ("width", "heads", "context"))
    factory = {"dtype": dtype, "device": device}
    x, branch = torch.randn(2, batch, context, width, **factory)
    hidden = torch.randn(batch, context, 4 * width, **factory)
    elements, hidden_elements = x.numel(), hidden.numel()

    ids = torch.randint(gpt.VOCABULARY, (batch, context), device=device)
    embed = gpt.Embedding(width, context).to(**factory)
    # adds a position's vector to a byte's
    yield Operation("embedding", elements, (ids, x, *embed.parameters()), lambda: embed(ids))
    norm = torch.nn.LayerNorm(width, **factory)
    # sum; difference, square, sum; root and mean divide; scale, shift
    yield Operation("LayerNorm", 8 * elements, (x, x, *norm.parameters()), lambda: norm(x))
    up = torch.nn.Linear(width, 4 * width, **factory)
    product = 2 * elements * 4 * width + hidden_elements
    yield Operation("up-projection", product, (x, *up.parameters(), hidden), lambda: up(x))
    # x / 2 * (1 + erf(x / sqrt 2))
    gelu = partial(functional.gelu, hidden)
    yield Operation("GELU", 5 * hidden_elements, (hidden, hidden), gelu)
    scores = torch.randn(ids.numel(), gpt.VOCABULARY, **factory)
    entropy = partial(functional.cross_entropy, scores, ids.flatten())
    # largest, difference, exp, sum
    yield Operation("softmax and loss", 4 * scores.numel(), (scores, ids), entropy)
    yield Operation("residual add", elements, (x, branch, x), lambda: x + branch)
    projected = torch.randn(3, batch, heads, context, width // heads, **factory)
    attend = partial(functional.scaled_dot_product_attention, *projected, is_causal=True)
    # two products over the positions before it and its own
    yield Operation("attention", 2 * elements * (context + 1), (*projected, x), attend)
    for name, fused in (("AdamW", False), ("AdamW, fused", True)):
        matrices = torch.randn(12 * width, width, **factory)  # as many numbers as a block's
        parameter = torch.nn.Parameter(matrices)
        parameter.grad = torch.ones_like(parameter)
        step = torch.optim.AdamW([parameter], lr=1e-3, fused=fused).step
        # decay 1, first moment 3, second 4, root and quotients 6; reads parameter, gradient and
        # moments, writes all but the gradient
        yield Operation(name, 14 * parameter.numel(), (parameter,) * 7, step)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--device", default="cpu", choices=MATRIX_SIZE)
    flags.add_argument("--dtype", default="float32")
    flags.add_argument("--cores", type=int, default=1)
    flags.add_argument("--size", help="size of a GPT whose operations to measure too")
    flags.add_argument("--batch", type=int, default=8)
    flags.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    args = flags.parse_args()
    found = {"device": args.device, "dtype": args.dtype, "cores_per_rank": args.cores}
    found["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    found |= {"processes": 1, "machine": machine.describe()}  # before it keeps to its cores
    config.use_cores(args.device, args.cores)
    if args.size:
        found |= measure(args.device, args.dtype, args.size, args.batch)
    else:
        found["flops_per_second"] = measure_flops_per_second(args.device, args.dtype)
    write_json(args.out, found)


if __name__ == "__main__":
    main()
