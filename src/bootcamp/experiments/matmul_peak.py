"""python -m bootcamp.experiments.matmul_peak --device cpu --dtype float32 --cores 1 --out FILE

What this machine's matrix multiply really reaches: the yardstick for a training's FLOP/s.
Measured once for each device, number format and number of cores, and kept in logs/machine.json.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import launch
from bootcamp.paths import LOGS
from bootcamp.records import summary

KEPT = LOGS / "machine.json"
SIZE = {"cpu": 1024, "cuda": 8192}
REPETITIONS = 15


def matmul_flops_per_second(device: str = "cpu", dtype: str = "float32", cores: int = 1) -> float:
    """Floating-point operations per second of a square matrix product: median of 15 repetitions.

    Matrices of 1024 x 1024 on the CPU, 8192 x 8192 on a GPU; a multiplication and an addition count
    as two. Measured in a process of its own, which takes a few seconds the first time.
    """
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    name = machine.cpu_name() if device == "cpu" else ", ".join(machine.gpu_names())
    key = f"{name} {device} {dtype} {cores}"
    if key not in kept:
        arguments = {"device": device, "dtype": dtype, "cores": cores, "out": KEPT, "key": key}
        command = [
            "python",
            "-m",
            "bootcamp.experiments.matmul_peak",
            *launch.to_arguments(arguments),
        ]
        launch.run_command(command)
        kept = json.loads(KEPT.read_text())
    return kept[key]


def measure(device: str, dtype: str, cores: int) -> float:
    """The measurement itself, in this process: it keeps the cores that it is given."""
    import os

    import torch

    torch.set_num_threads(cores)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(machine.cores()[:cores]))
    size = SIZE[device]
    matrix = torch.randn(size, size).to(device, getattr(torch, dtype))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(3 + REPETITIONS):
        wait()
        began = time.perf_counter()
        matrix @ matrix
        wait()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=SIZE)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--key", default="cpu float32 1")
    args = parser.parse_args()
    reached = measure(args.device, args.dtype, args.cores)
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    summary.write_json(args.out, {**kept, args.key: reached})


if __name__ == "__main__":
    main()
