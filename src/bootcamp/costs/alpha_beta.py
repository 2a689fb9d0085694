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
    """Algorithm and bus bandwidth of an all-reduce of `size` bytes, in bytes per second.

    The second is what each rank's link must carry, comparable to the hardware's figure for any
    number of ranks (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    return {
        "algorithm_bandwidth_bytes_per_second": size / seconds,
        "bus_bandwidth_bytes_per_second": ring_bytes("all-reduce", size, ranks) / seconds,
    }


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * bytes up to the knee, and beyond * bytes for those above it.

    alpha_seconds: of an almost empty call. beta_...: seconds per byte below the knee, beyond_...:
    above it. knee_bytes: None if one line fits. smallest_bytes: of the fitted sizes.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    beyond_seconds_per_byte: float
    knee_bytes: int | None
    smallest_bytes: int

    def predict(self, size: float) -> float:
        """Seconds of a call with `size` bytes; outside the fitted sizes a guess along the line."""
        below = size if self.knee_bytes is None else min(size, self.knee_bytes)
        slow = self.beyond_seconds_per_byte * (size - below)
        return self.alpha_seconds + self.beta_seconds_per_byte * below + slow

    def errors(self, rows: list[dict], of: str = "seconds") -> dict:
        """How far off it is on these rows: {"median", "largest"} of |predicted/measured - 1|."""
        rows = [row for row in rows if row["bytes"] >= self.smallest_bytes]
        if not rows:
            raise ValueError(f"no row has {self.smallest_bytes} bytes or more: expected some")
        off = [abs(self.predict(row["bytes"]) / row[of] - 1) for row in rows]
        return {"median": statistics.median(off), "largest": max(off)}


def fit(rows: list[dict], of: str = "seconds") -> Fit:
    """The alpha and beta that fit these rows best: least squares of the relative error.

    rows: each with "bytes" and the time named by `of`. Alpha and betas are not negative. A knee is
    taken, at one of the sizes, if it lowers the squared error of one line to 70 % or less.

    Raises ValueError with fewer than three rows of at least SMALLEST_BYTES.
    """
    rows = sorted(
        (row for row in rows if row["bytes"] >= SMALLEST_BYTES), key=lambda row: row["bytes"]
    )
    if len(rows) < 3:
        raise ValueError(f"{len(rows)} row(s) of {SMALLEST_BYTES} bytes or more: expected three")
    sizes = np.array([row["bytes"] for row in rows], dtype=float)
    seconds = np.array([row[of] for row in rows])
    error, (alpha, beta) = _least_squares([np.ones_like(sizes), sizes], seconds)
    best = Fit(alpha, beta, beta, None, int(sizes[0]))
    limit = KNEE_GAIN * error - 1e-12 * len(rows)  # a perfect line leaves nothing to be gained
    for knee in sizes[BESIDE_A_KNEE - 1 : len(sizes) - BESIDE_A_KNEE]:
        below = np.minimum(sizes, knee)
        bent, (alpha, beta, beyond) = _least_squares(
            [np.ones_like(sizes), below, sizes - below], seconds
        )
        if bent < limit:
            limit, best = bent, Fit(alpha, beta, beyond, int(knee), int(sizes[0]))
    return best


def _least_squares(terms: list[np.ndarray], seconds: np.ndarray) -> tuple[float, list[float]]:
    """(squared relative error, factors) of the best sum of the terms, none below zero."""
    columns = np.stack(terms, axis=1) / seconds[:, None]
    positive = list(range(len(terms)))
    while True:
        kept = columns[:, positive]
        scale = np.linalg.norm(kept, axis=0)  # bytes and seconds are far apart
        found = np.linalg.lstsq(kept / scale, np.ones(len(kept)), rcond=None)[0]
        if found.min() >= 0:
            break
        positive.pop(int(found.argmin()))
    factors = np.zeros(len(terms))
    factors[positive] = found / scale
    return float(((columns @ factors - 1) ** 2).sum()), factors.tolist()
