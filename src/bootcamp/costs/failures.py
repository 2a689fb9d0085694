"""Failures of a training on many GPUs: how often, and how often to save because of them.

Any GPU's failure stops all of them, so N GPUs fail N times as often as one. All times are in
seconds, failures are independent of each other and of age. `lost_share` and `young` are Young's
first order (1974), `effective_share` and `daly` are Daly's model (Future Generation Computer
Systems 22, 2006), and `simulated_share` plays it. published/failures.csv has rates of real runs.
"""

import math
import random

from bootcamp.costs import published

HOUR = 3600.0


def between_failures(gpus: int, run: str = "Llama 3 405B") -> float:
    """Mean seconds between failures of a job on so many GPUs, each as reliable as a run's.

    Raises ValueError for a run that is not in published/failures.csv.
    """
    known = {row["run"]: row for row in published.table("failures")}
    if run not in known:
        raise ValueError(f"run={run!r}: expected one of {', '.join(known)}")
    days, failed = float(known[run]["days"]), float(known[run]["failures"])
    return 24 * float(known[run]["gpus"]) * days / failed * HOUR / gpus


def lost_share(interval: float, save: float, between: float, restart: float = 0.0) -> float:
    """Share of the time that is lost: in saving, in restarting, and in training again.

    To first order: a save in each interval; with each failure a restart, and on average half of an
    interval.
    """
    return save / interval + (interval / 2 + restart) / between


def young(save: float, between: float) -> float:
    """The interval with the smallest `lost_share`. How long a restart takes does not change it."""
    return math.sqrt(2 * save * between)


def daly(save: float, between: float) -> float:
    """Seconds to train between two saves so that `effective_share` is close to its largest.

    Daly's equation 37; his sum of a series is within 0.2 % of the best share.
    """
    if save >= 2 * between:
        return between
    x = math.sqrt(save / (2 * between))
    return math.sqrt(2 * save * between) * (1 + x / 3 + x * x / 9) - save


def effective_share(interval: float, save: float, between: float, restart: float = 0.0) -> float:
    """Share of the time that is training which counts, at any rate of failures.

    interval: seconds of training between the end of a save and the next save. A failure may come
    in training, in a save or in a restart, and what was not saved is trained again.
    """
    exponent = (interval + save) / between + restart / between
    if exponent > 700:  # more than floats hold: nothing is ever saved
        return 0.0
    wall = between * math.exp(restart / between) * math.expm1((interval + save) / between)
    return interval / wall


def simulated_share(
    interval: float,
    save: float,
    between: float,
    restart: float = 0.0,
    saves: int = 10_000,
) -> float:
    """Play one training with so many saves, its failures drawn at random: its `effective_share`."""
    chance = random.Random(0)
    failure, clock = chance.expovariate(1 / between), 0.0
    for _ in range(saves):
        needed = interval + save
        while clock + needed > failure:  # it fails on the way, and begins at the last save again
            clock, needed = failure, restart + interval + save
            failure += chance.expovariate(1 / between)
        clock += needed
    return saves * interval / clock
