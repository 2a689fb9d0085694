"""The cost of a collective by its size: seconds = alpha + beta * bytes.

Alpha is the latency, beta the inverse of the bandwidth (Hockney, Parallel Computing 20, 1994).
Where the measured sizes ask for it, a second, steeper or flatter beta begins at a knee.
"""

import statistics
from dataclasses import dataclass

import numpy as np

from bootcamp.costs.sharding import ring_bytes

SMALLEST_BYTES = 256  # below it an array has too few numbers to cut for every rank: other costs
# A knee must leave at most this share of one line's squared error: about what the Bayesian
# information criterion asks of two more parameters with 18 rows (Schwarz, Ann. Stat. 6, 1978).
KNEE_GAIN = 0.7
BESIDE_A_KNEE = 3  # fitted sizes at least on each side of a knee


def bandwidths(size: int, seconds: float, ranks: int) -> dict:
    """Return an all-reduce's algorithm and bus bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    return {
        "algorithm_bandwidth_bytes_per_second": size / seconds,
        "bus_bandwidth_bytes_per_second": ring_bytes("all-reduce", size, ranks) / seconds,
    }


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * bytes up to the knee, and beyond * bytes for those above it."""

    alpha_seconds: float
    beta_seconds_per_byte: float
    beyond_seconds_per_byte: float
    knee_bytes: int | None  # None if one line fits
    smallest_bytes: int  # of the fitted sizes

    def predict(self, size: float) -> float:
        """Return the seconds of a call; outside the fitted sizes a guess along the line."""
        below = size if self.knee_bytes is None else min(size, self.knee_bytes)
        slow = self.beyond_seconds_per_byte * (size - below)
        return self.alpha_seconds + self.beta_seconds_per_byte * below + slow

    def errors(self, rows: list[dict]) -> dict:
        """Return {"median", "largest"} of |predicted / measured - 1| over these rows."""
        rows = [row for row in rows if row["bytes"] >= self.smallest_bytes]
        if not rows:
            raise ValueError(f"no row has {self.smallest_bytes} bytes or more: expected some")
        off = [abs(self.predict(row["bytes"]) / row["seconds"] - 1) for row in rows]
        return {"median": statistics.median(off), "largest": max(off)}


def fit(rows: list[dict]) -> Fit:
    """Fit alpha and beta, none negative, to rows of "bytes" and "seconds": least relative squares.

    A knee at one of the sizes must lower the squared error to KNEE_GAIN of one line's. Raises
    ValueError with fewer than three rows of at least SMALLEST_BYTES.
    """
    known = sorted((row["bytes"], row["seconds"]) for row in rows if row["bytes"] >= SMALLEST_BYTES)
    if len(known) < 3:
        raise ValueError(f"{len(known)} row(s) of {SMALLEST_BYTES} bytes or more: expected three")
    sizes, seconds = np.array(known, dtype=float).T
    error, (alpha, beta) = _least_squares([np.ones_like(sizes), sizes], seconds)
    best = Fit(alpha, beta, beta, None, int(sizes[0]))
    limit = KNEE_GAIN * error - 1e-12 * len(sizes)  # a perfect line leaves nothing to be gained
    for knee in sizes[BESIDE_A_KNEE - 1 : len(sizes) - BESIDE_A_KNEE]:
        below = np.minimum(sizes, knee)
        terms = [np.ones_like(sizes), below, sizes - below]
        bent, (alpha, beta, beyond) = _least_squares(terms, seconds)
        if bent < limit:
            limit, best = bent, Fit(alpha, beta, beyond, int(knee), int(sizes[0]))
    return best


def _least_squares(terms: list[np.ndarray], seconds: np.ndarray) -> tuple[float, list[float]]:
    """Return (squared relative error, factors) of the best sum of the terms, none below zero."""
    columns = np.stack(terms, axis=1) / seconds[:, None]
    scale = np.linalg.norm(columns, axis=0)  # bytes and seconds are far apart
    columns /= scale
    positive = list(range(len(terms)))
    while True:
        found = np.linalg.lstsq(columns[:, positive], np.ones(len(columns)), rcond=None)[0]
        if found.min() >= 0:
            break
        positive.pop(int(found.argmin()))
    factors = np.zeros(len(terms))
    factors[positive] = found
    return float(((columns @ factors - 1) ** 2).sum()), (factors / scale).tolist()
