"""The cost of a collective by its size: seconds = alpha + beta * bytes.

Alpha is the latency, beta the inverse of the bandwidth (Hockney, Parallel Computing 20, 1994).
Where the measured sizes ask for it, a second, steeper or flatter beta begins at a knee.
"""

import statistics
from dataclasses import dataclass

import numpy as np

SMALLEST_BYTES = 256  # below it an array has too few numbers to cut for every rank: other costs
# A knee must leave at most this share of one line's squared error: about what the Bayesian
# information criterion asks of two more parameters with 18 rows (Schwarz, Ann. Stat. 6, 1978).
KNEE_GAIN = 0.7
BESIDE_A_KNEE = 3  # fitted sizes at least on each side of a knee


def bandwidths(size: int, seconds: float, ranks: int) -> dict:
    """Algorithm and bus bandwidth of an all-reduce of `size` bytes, in bytes per second.

    algorithm = S/t. bus = algorithm * 2(n-1)/n: what each rank's link must carry, comparable to the
    hardware's figure for any number of ranks (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    algorithm = size / seconds
    return {
        "algorithm_bandwidth_bytes_per_second": algorithm,
        "bus_bandwidth_bytes_per_second": algorithm * 2 * (ranks - 1) / ranks,
    }


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * bytes up to the knee, and beyond * bytes for those above it.

    alpha_seconds: of an almost empty call. beta_...: seconds per byte below the knee, beyond_...:
    above it. knee_bytes: None if one line fits. smallest_bytes, largest_bytes: the fitted sizes.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    beyond_seconds_per_byte: float
    knee_bytes: int | None
    smallest_bytes: int
    largest_bytes: int

    def predict(self, size: float) -> float:
        """Seconds of a call with `size` bytes; outside the fitted sizes a guess along the line."""
        below = size if self.knee_bytes is None else min(size, self.knee_bytes)
        slow = self.beyond_seconds_per_byte * (size - below)
        return self.alpha_seconds + self.beta_seconds_per_byte * below + slow

    def errors(self, rows: list[dict], of: str = "seconds") -> dict:
        """How far off it is on these rows: {"median", "largest"} of |predicted/measured - 1|.

        Rows below the fitted sizes are left out. Raises ValueError where none is left.
        """
        rows = [row for row in rows if row["bytes"] >= self.smallest_bytes]
        if not rows:
            raise ValueError(f"no row has {self.smallest_bytes} bytes or more: expected some")
        off = [abs(self.predict(row["bytes"]) / row[of] - 1) for row in rows]
        return {"median": statistics.median(off), "largest": max(off)}


def fit(rows: list[dict], of: str = "seconds", smallest_bytes: int = SMALLEST_BYTES) -> Fit:
    """The alpha and beta that these rows fit best: least squares of the relative error.

    rows: each with "bytes" and the time named by `of`. Every row counts by its error in percent, so
    that microseconds count as much as seconds do. Alpha and betas are never negative. A knee is
    taken, at one of the sizes, if it lowers the squared error of one line to 70 % or less.

    Raises ValueError with fewer than three rows of at least smallest_bytes.
    """
    rows = sorted(
        (row for row in rows if row["bytes"] >= smallest_bytes), key=lambda row: row["bytes"]
    )
    if len(rows) < 3:
        raise ValueError(f"{len(rows)} row(s) of {smallest_bytes} bytes or more: expected three")
    sizes = np.array([row["bytes"] for row in rows], dtype=float)
    seconds = np.array([row[of] for row in rows])
    error, best = _line(sizes, seconds, None)
    inner = sizes[BESIDE_A_KNEE - 1 : len(sizes) - BESIDE_A_KNEE]
    bent = min((_line(sizes, seconds, knee) for knee in inner), default=(np.inf, best))
    noise = 1e-12 * len(rows)  # rows of a perfect line: nothing is left to be gained
    if bent[0] < KNEE_GAIN * error - noise:
        best = bent[1]
    alpha, beta, beyond, knee = best
    return Fit(alpha, beta, beyond, knee, int(sizes[0]), int(sizes[-1]))


def _line(sizes, seconds, knee: float | None) -> tuple[float, tuple]:
    """(sum of squared relative errors, (alpha, beta, beyond, knee)) of the best bent line."""
    below = sizes if knee is None else np.minimum(sizes, knee)
    terms = [np.ones_like(sizes), below] + ([] if knee is None else [sizes - below])
    relative = np.stack(terms, axis=1) / seconds[:, None]
    error, values = _least_squares(relative)
    alpha, beta, beyond = (*values, values[-1])[:3]  # one line goes on as it began
    return error, (alpha, beta, beyond, None if knee is None else int(knee))


def _least_squares(columns: np.ndarray) -> tuple[float, list[float]]:
    """(error, factors) of |columns @ factors - 1|^2 at its smallest with no factor below zero.

    columns: (rows, terms). A negative factor is set to zero, the most negative one first.
    """
    kept = list(range(columns.shape[1]))
    while True:
        scale = np.linalg.norm(columns[:, kept], axis=0)  # bytes and seconds are far apart
        found = np.linalg.lstsq(columns[:, kept] / scale, np.ones(len(columns)), rcond=None)[0]
        if found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    factors = np.zeros(columns.shape[1])
    factors[kept] = found / scale
    return float(((columns @ factors - 1) ** 2).sum()), factors.tolist()
