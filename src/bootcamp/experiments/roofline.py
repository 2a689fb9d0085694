"""Which of a GPT's operations are limited by arithmetic, and which by memory: `roofline.measure()`.

An operation that does `intensity` floating-point operations for each byte that it moves can do no
more per second than the smaller of the device's peak and intensity * bandwidth (Williams, Waterman
and Patterson, CACM 52(4), 2009). train.gpt_operations measures; logs/machine.json keeps the result.
"""

from bootcamp import units
from bootcamp.experiments import matmul_peak
from bootcamp.records.measurement import Measurement

BATCH = {"cpu": 8, "cuda": 32}


class Roofline(Measurement):
    """A measured roofline.

    peak_flops_per_second, bandwidth_bytes_per_second: the roof, the former no less than
    matmul_peak.matmul_flops_per_second. cache_bytes: of the device's last cache, None where
    unknown. operations: dictionaries with name, flops, bytes, seconds, intensity (flops per byte),
    achieved_flops_per_second, fits_in_cache.
    """

    def __init__(self, content: dict):
        self.folder, self.config = matmul_peak.KEPT.parent, content
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


def measure(
    device: str = "cpu",
    dtype: str = "float32",
    cores: int = 1,
    size: str = "small",
    batch: int | None = None,
    again: bool = False,
) -> Roofline:
    """The roofline of one rank, with the operations of a GPT of this size on it.

    batch: samples; None is 8 on the CPU, 32 on a GPU. again: measure although it is known. It takes
    a process of its own and half a minute; after that logs/machine.json knows.
    """
    top = matmul_peak.matmul_flops_per_second(device, dtype, cores)
    rank = {"device": device, "dtype": dtype, "cores": cores}
    work = {"size": size, "batch": batch or BATCH[device]}
    content = matmul_peak.measured("gpt_operations", again, **rank, **work)
    peak = max(top, content["peak_flops_per_second"])
    return Roofline(content | {"peak_flops_per_second": peak})
