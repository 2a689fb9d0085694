"""python -m bootcamp.experiments.roofline --device cpu --dtype float32 --size small --batch 8

Which of a GPT's operations are limited by arithmetic, and which by memory: the roofline (Williams,
Waterman and Patterson, CACM 52(4), 2009). An operation that does `intensity` floating-point
operations for each byte that it moves can do no more per second than the smaller of the device's
peak and intensity * bandwidth. Every time is that of the fastest of some calls.

Measured once for each device, number format, cores, size and batch; kept in
logs/machine/roofline.json.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.experiments import matmul_peak
from bootcamp.launcher import launch
from bootcamp.paths import LOGS
from bootcamp.records import summary
from bootcamp.records.runs import Run

KEPT = LOGS / "machine" / "roofline.json"
BATCH = {"cpu": 8, "cuda": 32}
STREAMED_BYTES = {"cpu": 2**28, "cuda": 2**30}  # several times what a last-level cache holds
CALLS, FEWEST_CALLS, ENOUGH_SECONDS = 9, 3, 1.0
# glibc gives large blocks back at once and asks for empty pages again; kept, they cost what a GPU's
# caching allocator does: nothing. A sum of two 64 MiB tensors took five times as long without.
REUSE_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}


@dataclass(frozen=True)
class Operation:
    """One operation of the model and its least cost.

    flops: floating-point operations by formula; an addition, a multiplication, a root and a
    function such as exp or erf count as one each. bytes: its operands read once and its results
    written once, which no implementation can undercut, while many move more.
    """

    name: str
    flops: int
    bytes: int
    run: Callable[[], object]


class Roofline(Run):
    """A measured roofline; it says where it was measured as a run does.

    peak_flops_per_second, bandwidth_bytes_per_second: the roof, the former no less than
    peak.matmul_flops_per_second. cache_bytes: of the device's last
    cache, None where unknown. operations: dictionaries with name, flops, bytes, seconds, intensity
    (flops per byte), achieved_flops_per_second, fits_in_cache.
    """

    def __init__(self, content: dict):
        super().__init__(KEPT.parent)
        self.config = content
        self.peak_flops_per_second = content["peak_flops_per_second"]
        self.bandwidth_bytes_per_second = content["bandwidth_bytes_per_second"]
        self.cache_bytes = content["cache_bytes"]
        self.operations = content["operations"]

    def roof(self, intensity: float) -> float:
        """The most FLOP/s that an operation of this intensity can reach from memory."""
        return min(self.peak_flops_per_second, intensity * self.bandwidth_bytes_per_second)

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit, in FLOPs per byte."""
        return self.peak_flops_per_second / self.bandwidth_bytes_per_second

    def __repr__(self) -> str:
        return (
            f"Roofline of one {'GPU' if self.device == 'cuda' else 'CPU'} rank: "
            f"{self.peak_flops_per_second / 1e9:,.0f} GFLOP/s, "
            f"{self.bandwidth_bytes_per_second / 1e9:,.0f} GB/s, ridge at {self.ridge:.1f} FLOP/B"
        )


def measure(
    device: str = "cpu",
    dtype: str = "float32",
    cores: int = 1,
    size: str = "small",
    batch: int | None = None,
    again: bool = False,
) -> Roofline:
    """The roofline of one rank, with the operations of a GPT of this size on it.

    batch: samples; None is 8 on the CPU, 32 on a GPU. again: measure although it has been measured.
    It takes a process of its own and half a minute; after that logs/machine/roofline.json knows.
    """
    batch = batch or BATCH[device]
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    name = machine.cpu_name() if device == "cpu" else ", ".join(machine.gpu_names())
    key = f"{name} {device} {dtype} {cores} gpt {size} {batch}"
    if again or key not in kept:
        top = matmul_peak.matmul_flops_per_second(device, dtype, cores)
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        arguments = {"device": device, "dtype": dtype, "cores": cores, "size": size}
        arguments |= {"batch": batch, "peak": top, "out": KEPT, "key": key}
        command = ["python", "-m", "bootcamp.experiments.roofline", *launch.to_arguments(arguments)]
        launch.run_command(command, seconds=600, env=REUSE_MEMORY)
        kept = json.loads(KEPT.read_text())
    return Roofline(kept[key])


def measure_here(device: str, dtype: str, cores: int, size: str, batch: int) -> dict:
    """The measurement itself, in this process: it keeps the cores that it is given.

    The roof is measured again and again between the operations, and is the best that was seen: on a
    machine with other work to do, one moment's roof would lie below the next moment's operation.
    """
    import os
    import platform

    import torch

    host = machine.describe()  # before this process keeps to its cores
    torch.set_num_threads(cores)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(machine.cores()[:cores]))
    cache = cache_bytes(device)
    peaks, bandwidths, measured = [], [], []
    with torch.no_grad():
        for operation in operations(size, batch, getattr(torch, dtype), device):
            peaks.append(matmul_flops_per_second(device, dtype))
            bandwidths.append(stream_bytes_per_second(device))
            measured.append(_timed(operation, device, cache))
    return {
        "device": device,
        "dtype": dtype,
        "cores_per_rank": cores,
        "processes": 1,
        "model": "gpt",
        "size": size,
        "global_batch": batch,
        "machine": host,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "peak_flops_per_second": max(peaks),
        "bandwidth_bytes_per_second": max(bandwidths),
        "cache_bytes": cache,
        "operations": measured,
    }


def matmul_flops_per_second(device: str, dtype: str) -> float:
    """The peak: a product of the matrices that peak.py takes, but its fastest, not its median."""
    import torch

    size = matmul_peak.SIZE[device]
    matrix = torch.ones(size, size, device=device, dtype=getattr(torch, dtype))
    return 2 * size**3 / fastest_seconds(lambda: matrix @ matrix, device)


def stream_bytes_per_second(device: str) -> float:
    """Memory bandwidth: scaling in place more than any cache holds, bytes read plus bytes written.

    In place, because a CPU that writes to other memory first reads what it is about to overwrite,
    which nobody counts (STREAM, McCalpin 1995).
    """
    import torch

    numbers = torch.ones(STREAMED_BYTES[device] // 4, device=device)
    return 2 * numbers.nbytes / fastest_seconds(lambda: numbers.mul_(1.0), device)


def fastest_seconds(run: Callable[[], object], device: str) -> float:
    """The fastest of nine calls after a first, three of a slow one; each until the device is done.

    What other processes do to a core makes calls slower, never faster.
    """
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    while len(seconds) <= FEWEST_CALLS or (len(seconds) <= CALLS and sum(seconds) < ENOUGH_SECONDS):
        wait()
        began = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def _timed(operation: Operation, device: str, cache: int | None) -> dict:
    seconds = fastest_seconds(operation.run, device)
    return {
        "name": operation.name,
        "flops": operation.flops,
        "bytes": operation.bytes,
        "seconds": seconds,
        "intensity": operation.flops / operation.bytes,
        "achieved_flops_per_second": operation.flops / seconds,
        "fits_in_cache": cache is not None and operation.bytes <= cache,
    }


def cache_bytes(device: str) -> int | None:
    """The last-level cache of this device; None where the system does not tell."""
    if device == "cuda":
        import torch

        return getattr(torch.cuda.get_device_properties(0), "L2_cache_size", None)
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")  # Linux: "32768K"
    return max((int(path.read_text().rstrip("K\n")) * 1024 for path in sizes), default=None)


def operations(size: str, batch: int, dtype, device: str) -> Iterator[Operation]:
    """The operations of a GPT's forward and of its optimizer, each as the model itself calls it.

    size: of gpt.SIZES. A result is a new tensor each time, as in training.
    """
    import torch
    from torch.nn import functional

    from bootcamp.train.models import gpt

    shape = gpt.SIZES[size]
    width, heads, context = shape["width"], shape["heads"], shape["context"]
    tokens = batch * context

    def draw(*shape):
        return torch.randn(*shape, dtype=dtype, device=device)

    ids = torch.randint(gpt.VOCABULARY, (batch, context), device=device)
    embed = gpt.Embedding(width, context).to(device, dtype)
    residual, branch = draw(batch, context, width), draw(batch, context, width)
    yield Operation(
        "embedding",
        tokens * width,  # adds a position's vector to a byte's
        ids.nbytes + _bytes(embed.byte.weight, embed.position.weight, residual),
        lambda: embed(ids),
    )
    yield Operation(
        "residual add",
        tokens * width,
        _bytes(residual, residual, branch),
        lambda: residual + branch,
    )
    norm = torch.nn.LayerNorm(width, device=device, dtype=dtype)
    yield Operation(
        "LayerNorm",
        8 * tokens * width,  # sum; difference, square, sum; root and mean divide; scale, shift
        _bytes(residual, residual, norm.weight, norm.bias),
        lambda: norm(residual),
    )
    up = torch.nn.Linear(width, 4 * width, device=device, dtype=dtype)
    wide = draw(batch, context, 4 * width)
    yield Operation(
        "up-projection",
        2 * tokens * width * 4 * width + wide.numel(),
        _bytes(residual, up.weight, up.bias, wide),
        lambda: up(residual),
    )
    yield Operation(
        "GELU",
        5 * wide.numel(),  # x / 2 * (1 + erf(x / sqrt 2))
        _bytes(wide, wide),
        lambda: functional.gelu(wide),
    )
    query, key, value = (draw(batch, heads, context, width // heads) for _ in range(3))
    yield Operation(
        "attention",
        4 * width * batch * context * (context + 1) // 2,  # two products over what came before
        _bytes(query, key, value, query),
        lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True),
    )
    scores = draw(tokens, gpt.VOCABULARY)
    yield Operation(
        "softmax and loss",
        4 * scores.numel(),  # largest, difference, exp, sum
        _bytes(scores) + ids.nbytes,
        lambda: functional.cross_entropy(scores, ids.flatten()),
    )
    for name, fused in (("AdamW", False), ("AdamW, fused", True)):
        optimizer, parameter = _optimizer(draw(12 * width, width), fused)
        yield Operation(
            name,
            14 * parameter.numel(),  # decay 1, first moment 3, second 4, root and quotients 6
            7 * parameter.nbytes,  # reads parameter, gradient and moments, writes all but one
            optimizer.step,
        )


def _bytes(*tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _optimizer(weights, fused: bool):
    """AdamW over as many parameters as a block's matrices have, with a gradient."""
    import torch

    parameter = torch.nn.Parameter(weights)
    parameter.grad = torch.ones_like(parameter)
    return torch.optim.AdamW([parameter], lr=1e-3, fused=fused), parameter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=BATCH)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--peak", type=float, default=0.0, help="known FLOP/s; the larger counts")
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--key", default="cpu float32 1 gpt small 8")
    args = parser.parse_args()
    content = measure_here(args.device, args.dtype, args.cores, args.size, args.batch)
    content["peak_flops_per_second"] = max(args.peak, content["peak_flops_per_second"])
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    summary.write_json(args.out, {**kept, args.key: content})


if __name__ == "__main__":
    main()
