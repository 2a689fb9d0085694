"""Measure which of a GPT's operations arithmetic limits, and which memory: `roofline.measure()`.

After Williams, Waterman and Patterson, CACM 52(4), 2009.
"""

import tempfile
from pathlib import Path

from bootcamp import machine, units
from bootcamp.files import read_json, update_json
from bootcamp.launcher import launch
from bootcamp.launcher.arguments import to_arguments
from bootcamp.paths import LOGS
from bootcamp.records.measurement import Measurement

BATCH = {"cpu": 8, "cuda": 32}
KEPT = LOGS / "machine.json"
# glibc gives large blocks back at once and asks for empty pages again; kept, they cost what a GPU's
# caching allocator does: nothing. A sum of two 64 MiB tensors took five times as long without.
REUSE_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}


class Roofline(Measurement):
    """A measured roofline.

    cache_bytes: of the device's last cache, None where unknown. operations: dictionaries with name,
    flops, bytes, seconds, intensity (flops per byte), achieved_flops_per_second, fits_in_cache.
    """

    def __init__(self, content: dict):
        self.folder, self.config = KEPT.parent, content
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
            f"{units.flops(self.peak_flops_per_second)}, "
            f"{units.size(self.bandwidth_bytes_per_second)}/s, ridge at {self.ridge:.1f} FLOP/B"
        )


def measure(device: str = "cpu", size: str = "small", batch: int | None = None) -> Roofline:
    """Measure the roofline of one rank, with a GPT's operations, in half a minute the first time.

    batch: samples; None is 8 on the CPU, 32 on a GPU.
    """
    top = matmul_flops_per_second(device)
    content = measure_once(device, size=size, batch=batch or BATCH[device])
    peak = max(top, content["peak_flops_per_second"])
    return Roofline(content | {"peak_flops_per_second": peak})


def matmul_flops_per_second(device: str = "cpu", dtype: str = "float32", cores: int = 1) -> float:
    """Measure a square matrix product on one rank: the yardstick for a training's FLOP/s.

    A multiplication and an addition count as two. Takes a few seconds the first time.
    """
    return measure_once(device, dtype, cores)["flops_per_second"]


def measure_once(device: str, dtype: str = "float32", cores: int = 1, **work) -> dict:
    """Run train/benchmark.py with these flags once, and keep its result. Raises LaunchError."""
    arguments = {"device": device, "dtype": dtype, "cores": cores, **work}
    name = ", ".join(machine.gpu_names()) if device == "cuda" else machine.cpu_name()
    key = " ".join(map(str, [name, *arguments.values()]))
    kept = read_json(KEPT)
    if key not in kept:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "measured.json"
            flags = to_arguments(arguments | {"out": out})
            command = ["python", "-m", "bootcamp.train.benchmark", *flags]
            launch.run_command(command, seconds=600, env=REUSE_MEMORY)
            new = {key: read_json(out)}
        kept = update_json(KEPT, lambda content: content.update(new))
    return kept[key]
