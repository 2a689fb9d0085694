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
    """One GPU.

    peak: FLOP/s in 16 bit, dense; peak_fp8 and peak_fp32 likewise. reached: what share of `peak`
    the best product was measured to reach. memory: bytes. hbm: bytes/s of its memory. bus: bytes/s
    of an all-reduce's bus in one host. multiprocessors: parts that take tiles of a product. kind:
    the GPU whose fitted constants hold for it too, by default itself.
    """

    name: str
    peak: float
    reached: float
    peak_fp8: float
    peak_fp32: float
    memory: float
    hbm: float
    bus: float
    multiprocessors: int
    watts: float
    kind: str = ""

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

    def __post_init__(self):
        if self.gpus < 1 or self.per_host < 1 or not self.host_bytes > 0:
            raise ValueError(
                f"{self.gpus} GPUs, {self.per_host} a host, {self.host_bytes / GB:g} GB/s: "
                "expected one or more, and a bandwidth above zero"
            )


@cache
def _gpus() -> dict[frozenset[str], Gpu]:
    """{words of a spelling of its name: GPU}, of published/gpus.csv."""
    found = {}
    for row in published.table("gpus"):
        peak, fp8, fp32, reached = (
            float(row[f"{name}_tflops"] or 0)
            for name in ("peak", "peak_fp8", "peak_fp32", "reached")
        )
        made = Gpu(
            name=row["gpu"],
            peak=1e12 * peak,
            reached=(reached or REACHED * peak) / peak,
            peak_fp8=1e12 * fp8,
            peak_fp32=1e12 * fp32,
            memory=float(row["memory_gb"]) * GB,
            hbm=1e12 * float(row["hbm_tb_s"]),
            bus=float(row["bus_gb_s"]) * GB,
            multiprocessors=int(row["multiprocessors"]),
            watts=float(row["watts"]),
            kind=row["kind"] or row["gpu"].split()[0],
        )
        spellings = [row["gpu"], row["lessons"], *row["spellings"].split(";")]
        found |= {_words(spelling): made for spelling in spellings if spelling}
    return found


def shown_in_lessons() -> list[dict[str, str]]:
    """Return the rows of published/gpus.csv that lessons compare, `lessons` is their name there."""
    return [row for row in published.table("gpus") if row["lessons"]]


def gpu(name: str) -> Gpu:
    """A GPU by its name, spelled freely ("a100_80gb"), or by a text that has its name in it.

    Raises ValueError for one that the table lacks.
    """
    known, words = _gpus(), _words(name)
    inside = [spelling for spelling in known if spelling <= words]
    if not inside:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in known.values()))
        raise ValueError(f"gpu={name!r} is not known: expected one of {names}")
    return known[max(inside, key=len)]


def kind(name: str) -> str:
    """The GPU whose fitted constants hold for the one of this name; "" for none."""
    return gpu(name).kind if name else ""


@cache
def _words(name: str) -> frozenset[str]:
    """Words of a name: "A100-SXM4-80GB" and "a100 80 GB" have the same, but for the module's."""
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower())
    return frozenset(re.sub(r"\b(\d+) ?gi?b\b", r"\1gb", plain).split())
