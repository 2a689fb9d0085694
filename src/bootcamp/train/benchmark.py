"""python -m bootcamp.train.benchmark --device cpu --dtype float32 --cores 1 --out FILE

Measure one rank of this machine: what a matrix product reaches, and with `--size small --batch 8`
the operations of a GPT beside it, for the roofline (Williams, Waterman and Patterson, CACM 52(4),
2009). Times are those of the fastest call: other processes make calls slower, never faster.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional

from bootcamp import machine
from bootcamp.files import write_json
from bootcamp.train.models import gpt

SIZE = {"cpu": 1024, "cuda": 8192}  # of a matrix
CALLS, FEWEST_CALLS, ENOUGH_SECONDS = 9, 3, 1.0
STREAMED_BYTES = {"cpu": 2**28, "cuda": 2**30}  # several times what a last-level cache holds


def begin(arguments: argparse.Namespace) -> dict:
    """Keep this process to its cores; return what a record says of where it was measured."""
    about = {
        "device": arguments.device,
        "dtype": arguments.dtype,
        "cores_per_rank": arguments.cores,
        "processes": 1,
        "machine": machine.describe(),  # before this process keeps to its cores
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    torch.set_num_threads(arguments.cores)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(machine.cores()[: arguments.cores]))
    return about


def fastest_seconds(run: Callable[[], object], device: str) -> float:
    """Time the fastest of nine calls after a first one, or of three slow ones."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    while len(seconds) <= FEWEST_CALLS or (len(seconds) <= CALLS and sum(seconds) < ENOUGH_SECONDS):
        wait()
        began = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def flops_per_second(device: str, dtype: str) -> float:
    """Measure a square matrix product; a multiplication and an addition count as two."""
    size = SIZE[device]
    matrix = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    return 2 * size**3 / fastest_seconds(lambda: matrix @ matrix, device)


def stream_bytes_per_second(device: str) -> float:
    """Measure memory bandwidth: bytes read plus written, scaling in place more than caches hold.

    A CPU that writes to other memory first reads what it overwrites (STREAM, McCalpin 1995).
    """
    numbers = torch.ones(STREAMED_BYTES[device] // 4, device=device)
    return 2 * numbers.nbytes / fastest_seconds(lambda: numbers.mul_(1.0), device)


def cache_bytes(device: str) -> int | None:
    """Read the size of the last-level cache; None where unknown."""
    if device == "cuda":
        return getattr(torch.cuda.get_device_properties(0), "L2_cache_size", None)
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")  # Linux: "32768K"
    return max((int(path.read_text().rstrip("K\n")) * 1024 for path in sizes), default=None)


def measure(device: str, dtype: str, size: str, batch: int) -> dict:
    """Measure peak, bandwidth, cache and operations of this process's cores or GPU.

    The roof is measured again between the operations, and the best counts: on a busy machine one
    moment's roof could be below the next moment's operation.
    """
    cache = cache_bytes(device)
    peaks, bandwidths, measured = [], [], []
    with torch.no_grad():
        for operation in operations(size, batch, getattr(torch, dtype), device):
            peaks.append(flops_per_second(device, dtype))
            bandwidths.append(stream_bytes_per_second(device))
            seconds = fastest_seconds(operation.run, device)
            row = {
                "name": operation.name,
                "flops": operation.flops,
                "bytes": operation.bytes,
                "seconds": seconds,
                "intensity": operation.flops / operation.bytes,
                "achieved_flops_per_second": operation.flops / seconds,
                "fits_in_cache": cache is not None and operation.bytes <= cache,
            }
            measured.append(row)
    return {
        "model": "gpt",
        "size": size,
        "global_batch": batch,
        "peak_flops_per_second": max(peaks),
        "bandwidth_bytes_per_second": max(bandwidths),
        "cache_bytes": cache,
        "operations": measured,
    }


class Operation(NamedTuple):
    """One operation of the model and its least cost by formula.

    flops: an addition, a multiplication, a root and a function such as exp or erf count as one
    each. bytes: operands read once, results written once.
    """

    name: str
    flops: int
    bytes: int
    run: Callable[[], object]


def operations(size: str, batch: int, dtype, device: str) -> Iterator[Operation]:
    """Make the operations of a GPT's forward and optimizer, each as the model calls it."""
    width, heads, context = (gpt.SIZES[size][name] for name in ("width", "heads", "context"))
    like = {"dtype": dtype, "device": device}
    x, branch = torch.randn(2, batch, context, width, **like)
    yield from _forward(x, torch.randint(gpt.VOCABULARY, (batch, context), device=device))
    yield Operation("residual add", x.numel(), 3 * x.nbytes, lambda: x + branch)
    projected = torch.randn(3, batch, heads, context, width // heads, **like)
    yield Operation(
        "attention",
        2 * x.numel() * (context + 1),  # two products over what came before
        4 * x.nbytes,
        lambda: functional.scaled_dot_product_attention(*projected, is_causal=True),
    )
    for name, fused in (("AdamW", False), ("AdamW, fused", True)):
        parameter = torch.nn.Parameter(torch.randn(12 * width, width, **like))  # a block's matrices
        parameter.grad = torch.ones_like(parameter)
        yield Operation(
            name,
            14 * parameter.numel(),  # decay 1, first moment 3, second 4, root and quotients 6
            7 * parameter.nbytes,  # reads parameter, gradient and moments, writes all but one
            torch.optim.AdamW([parameter], lr=1e-3, fused=fused).step,
        )


def _forward(x, ids) -> Iterator[Operation]:
    """x: (batch, context, width). ids: (batch, context)."""
    like, width = {"dtype": x.dtype, "device": x.device}, x.shape[-1]
    embed = gpt.Embedding(width, x.shape[1]).to(**like)
    norm = torch.nn.LayerNorm(width, **like)
    up = torch.nn.Linear(width, 4 * width, **like)
    wide = torch.randn(*x.shape[:-1], 4 * width, **like)
    scores = torch.randn(ids.numel(), gpt.VOCABULARY, **like)
    n, m = x.numel(), wide.numel()
    # name, operations, tensors read and written, call
    rows = (
        # adds a position's vector to a byte's
        ("embedding", n, (ids, x, *embed.parameters()), lambda: embed(ids)),
        # sum; difference, square, sum; root and mean divide; scale, shift
        ("LayerNorm", 8 * n, (x, x, *norm.parameters()), lambda: norm(x)),
        ("up-projection", 2 * n * 4 * width + m, (x, *up.parameters(), wide), lambda: up(x)),
        # x / 2 * (1 + erf(x / sqrt 2))
        ("GELU", 5 * m, (wide, wide), lambda: functional.gelu(wide)),
        # largest, difference, exp, sum
        (
            "softmax and loss",
            4 * scores.numel(),
            (scores, ids),
            lambda: functional.cross_entropy(scores, ids.flatten()),
        ),
    )
    for name, flops, tensors, run in rows:
        yield Operation(name, flops, sum(tensor.nbytes for tensor in tensors), run)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--device", default="cpu", choices=SIZE)
    flags.add_argument("--dtype", default="float32")
    flags.add_argument("--cores", type=int, default=1)
    flags.add_argument("--size", help="of a GPT whose operations are measured too")
    flags.add_argument("--batch", type=int, default=8)
    flags.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    args = flags.parse_args()
    found = begin(args)
    if args.size:
        found |= measure(args.device, args.dtype, args.size, args.batch)
    else:
        found["flops_per_second"] = flops_per_second(args.device, args.dtype)
    write_json(args.out, found)


if __name__ == "__main__":
    main()
