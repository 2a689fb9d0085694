"""What a collective costs on this machine: `link.load(ranks=2).fit().predict(25_000_000)`.

A sweep over sizes is measured once for each back end and number of ranks, and kept under
logs/machine/. The model of the cost is seconds = alpha + beta * bytes, the latency and the inverse
of the bandwidth (Hockney, Parallel Computing 20, 1994), with a second, steeper or flatter beta
beyond a knee where the measured sizes ask for one.
"""

import json
import re
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bootcamp import machine
from bootcamp.launcher.launch import default_ranks, launch
from bootcamp.paths import LOGS, SRC
from bootcamp.records import summary
from bootcamp.records.runs import Run

KEPT = LOGS / "machine"
COLLECTIVE = "all reduce"
SMALLEST_BYTES = 256  # below it an array has too few numbers to cut for every rank: other costs
# A knee must leave at most this share of one line's squared error: about what the Bayesian
# information criterion asks of two more parameters with 18 rows (Schwarz, Ann. Stat. 6, 1978).
KNEE_GAIN = 0.7
BESIDE_A_KNEE = 3  # fitted sizes at least on each side of a knee


def bandwidths(size: int, seconds: float, ranks: int) -> dict:
    """Algorithm and bus bandwidth of an all-reduce of `size` bytes, in bytes per second.

    algorithm = S/t. bus = algorithm * 2(n-1)/n: what each rank's link must carry, so that it can be
    held against the hardware's figure for any number of ranks (NVIDIA/nccl-tests,
    doc/PERFORMANCE.md).
    """
    algorithm = size / seconds
    return {
        "algorithm_bandwidth_bytes_per_second": algorithm,
        "bus_bandwidth_bytes_per_second": algorithm * 2 * (ranks - 1) / ranks,
    }


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * bytes up to the knee, and from there on beyond * bytes more.

    alpha_seconds: of a call with next to nothing in it. beta_...: seconds per byte below the knee,
    beyond_...: above it. knee_bytes: None where one line does. smallest_bytes, largest_bytes: the
    sizes that it was fitted to.
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
    rows = sorted((row for row in rows if row["bytes"] >= smallest_bytes), key=_size)
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


def _size(row: dict) -> int:
    return row["bytes"]


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


class Sweep(Run):
    """A measured sweep, read from its file; it says where it was measured as a run does.

    rows: one for each size: bytes, seconds (of the fastest call), median_seconds,
    algorithm_bandwidth_bytes_per_second, bus_bandwidth_bytes_per_second, held_out.
    """

    def __init__(self, path: Path):
        super().__init__(Path(path).parent)
        self.path = Path(path)

    @cached_property
    def config(self) -> dict:
        return json.loads(self.path.read_text())

    @property
    def rows(self) -> list[dict]:
        return self.config["rows"]

    @property
    def backend(self) -> str:
        """gloo or nccl."""
        return self.config["backend"]

    @property
    def held_out(self) -> list[dict]:
        """The rows that no fit has seen: sizes between the powers of two."""
        return [row for row in self.rows if row["held_out"]]

    def fit(self, of: str = "seconds") -> Fit:
        """Fitted to the powers of two; `of="median_seconds"` for the median call."""
        return fit([row for row in self.rows if not row["held_out"]], of)

    def __repr__(self) -> str:
        fitted = self.fit()
        off = fitted.errors(self.held_out)
        return (
            f"Sweep: {COLLECTIVE}, {self.world} ranks, {self.backend}, {len(self.rows)} sizes: "
            f"alpha {fitted.alpha_seconds * 1e6:.0f} µs, "
            f"beta {fitted.beta_seconds_per_byte * 1e9:.2f} s/GB, held-out sizes "
            f"{off['median']:.0%} off (median), {off['largest']:.0%} at most"
        )


def measure(ranks: int | None = None, device: str = "auto", rounds: int = 30) -> Sweep:
    """Run the sweep on these ranks, about 10 s, and keep its result in place of an earlier one.

    ranks: None is every GPU, else every core, and two at least. device: as launch has it. rounds:
    calls of each size.
    Raises ValueError with fewer than two ranks, LaunchError where the run fails.
    """
    ranks = max(2, default_ranks()) if ranks is None else ranks
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: expected two at least, one has nobody to talk to")
    script = SRC / "_sweep_all_reduce.py"
    run = launch(script, ranks, device=device, rounds=rounds, global_batch=ranks, quiet=True)
    return keep(run)


def keep(run: Run) -> Sweep:
    """Make the sweep of a run the machine's own: what `load` finds from now on."""
    sweep = json.loads((run.folder / "sweep.json").read_text())
    about = ("device", "processes", "cores_per_rank", "machine", "versions", "git_commit")
    path = _path(sweep["backend"], run.world)
    path.parent.mkdir(parents=True, exist_ok=True)
    summary.write_json(path, {**{name: run.config[name] for name in about}, **sweep})
    return Sweep(path)


def load(ranks: int | None = None, device: str = "auto") -> Sweep:
    """This machine's sweep over so many ranks, measured now if it has not been before."""
    ranks = max(2, default_ranks()) if ranks is None else ranks
    on_gpus = device == "cuda" or (device == "auto" and len(machine.gpu_names()) >= ranks)
    path = _path("nccl" if on_gpus else "gloo", ranks)
    return Sweep(path) if path.exists() else measure(ranks, device)


def _path(backend: str, ranks: int) -> Path:
    """One file for each collective, back end, number of ranks and machine."""
    described = machine.describe()
    name = described["gpus"][0] if backend == "nccl" else described["cpu"]
    words = f"{COLLECTIVE} {backend} {ranks} ranks {name} {described['cores']} cores"
    return KEPT / f"{'-'.join(re.findall(r'[a-z0-9]+', words.lower()))}.json"
