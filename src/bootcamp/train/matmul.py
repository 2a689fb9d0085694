"""python -m bootcamp.train.matmul --device cpu --dtype float32 --cores 1 --out FILE

What a matrix multiply reaches on one rank of this machine: the yardstick for a training's FLOP/s.
Every time is that of the fastest of some calls: other processes make calls slower, never faster.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bootcamp import machine
from bootcamp.files import write_json

SIZE = {"cpu": 1024, "cuda": 8192}
CALLS, FEWEST_CALLS, ENOUGH_SECONDS = 9, 3, 1.0


def begin(arguments: argparse.Namespace) -> dict:
    """Keep this process to its cores; what a record must say about where it was measured."""
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
    """The fastest of nine calls after a first one, or of three slow ones, each until it is done."""
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
    """FLOP/s of a square matrix product; a multiplication and an addition count as two.

    Matrices of 1024 x 1024 on the CPU, 8192 x 8192 on a GPU.
    """
    size = SIZE[device]
    matrix = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    return 2 * size**3 / fastest_seconds(lambda: matrix @ matrix, device)


def parser(description: str) -> argparse.ArgumentParser:
    """Flags of a measurement of one rank."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--device", default="cpu", choices=SIZE)
    flags.add_argument("--dtype", default="float32")
    flags.add_argument("--cores", type=int, default=1)
    flags.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    return flags


def main() -> None:
    args = parser(__doc__).parse_args()
    about = begin(args)
    write_json(args.out, about | {"flops_per_second": flops_per_second(args.device, args.dtype)})


if __name__ == "__main__":
    main()
