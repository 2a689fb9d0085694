"""GPUs and clusters by name: `Cluster(gpu("H100"), gpus=256)`.

GB is 1e9 bytes, GiB 2**30. Bandwidths are in one direction.
"""

import re
from dataclasses import dataclass
from functools import cache

from bootcamp.costs import published

GB, GIB = 1e9, 2.0**30
REACHED = 0.85  # of the peak, where nobody has measured it: between A100's share and H100's


@dataclass(frozen=True)
class Gpu:
    """One GPU, in bytes and seconds."""

    name: str
    peak: float  # FLOP/s in 16 bit, dense
    reached: float  # share of it that the best product was measured to reach
    peak_fp8: float
    peak_fp32: float
    memory: float
    hbm: float  # bandwidth of its memory
    bus: float  # bandwidth of an all-reduce's bus in one host
    multiprocessors: int  # parts that take tiles of a product
    watts: float  # rated
    kind: str  # the GPU whose fitted constants hold for it too, by default itself

    def peak_of(self, precision: str) -> float:
        """FLOP/s that the best product reaches in a precision; in 16 bit without units for it."""
        special = {"fp8": self.peak_fp8, "fp32": self.peak_fp32}.get(precision)
        return self.reached * (special or self.peak)


@dataclass(frozen=True)
class Cluster:
    """gpus GPUs, per_host of them in a host. host_bytes: bytes/s that a host sends to others."""

    gpu: Gpu
    gpus: int
    per_host: int = 8
    host_bytes: float = 400 * GB


def shown_in_lessons() -> list[dict[str, str]]:
    """Return the rows of published/gpus.csv that lessons compare, `lessons` is their name there."""
    return [row for row in published.table("gpus") if row["lessons"]]


@cache
def gpu(name: str) -> Gpu:
    """Find a GPU by a text with its name in it, spelled freely ("a100_80gb"), else ValueError."""
    words, found = _words(name), {}
    for row in published.table("gpus"):
        spellings = (row["gpu"], row["lessons"], *row["spellings"].split(";"))
        found |= {_words(each): row for each in spellings if each and _words(each) <= words}
    if not found:
        names = ", ".join(row["gpu"] for row in published.table("gpus"))
        raise ValueError(f"gpu={name!r} is not known: expected one of {names}")
    row = found[max(found, key=len)]

    def number(column: str) -> float:
        return float(row[column] or 0)

    peak = number("peak_tflops")
    return Gpu(
        name=row["gpu"],
        peak=1e12 * peak,
        reached=(number("reached_tflops") or REACHED * peak) / peak,
        peak_fp8=1e12 * number("peak_fp8_tflops"),
        peak_fp32=1e12 * number("peak_fp32_tflops"),
        memory=GB * number("memory_gb"),
        hbm=1e12 * number("hbm_tb_s"),
        bus=GB * number("bus_gb_s"),
        multiprocessors=int(row["multiprocessors"]),
        watts=number("watts"),
        kind=row["kind"] or row["gpu"].split()[0],
    )


def _words(name: str) -> frozenset[str]:
    """Split a name; "A100-SXM4-80GB" and "a100 80 GB" differ in the module's word alone."""
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower())
    return frozenset(re.sub(r"\b(\d+) ?gi?b\b", r"\1gb", plain).split())
