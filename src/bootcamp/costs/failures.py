"""A training on many GPUs: its failures, how often to save because of them, days, price, energy.

Any GPU's failure stops all, so N GPUs fail N times as often as one. Times are in seconds, failures
are independent of each other and of age. mtbf: the mean time between failures of the whole job.
"""

import math
import random

from bootcamp.costs import published
from bootcamp.costs.hardware import Gpu

HOUR = 3600.0
DOLLARS = 2.0  # for an hour of a GPU, as for an H800 in arXiv:2412.19437, table 1
OVERHEAD = 1.1  # energy of a data centre over that of its GPUs, at rated power (arXiv:2302.13971)


def bill(
    tokens: float, rate: float, gpu: Gpu, gpus: int, dollars=DOLLARS, save=60.0, restart=600.0
) -> dict[str, float]:
    """Work out days, GPU hours, dollars and energy of a training, saved at Daly's interval.

    rate: tokens a second of a GPU while nothing fails. dollars: for a GPU's hour. save: seconds.
    """
    between = mtbf_seconds(gpus)
    share = effective_share(daly_interval(save, between), save, between, restart)
    hours = tokens / rate / share / HOUR if share else math.inf
    spent = {"gpu_hours": hours, "dollars": hours * dollars}
    return {"days": hours / gpus / 24, **spent, "mwh": OVERHEAD * hours * gpu.watts / 1e6}


def mtbf_seconds(gpus: int, run: str = "Llama 3 405B") -> float:
    """Return the seconds between failures of a job on GPUs as reliable as a published run's."""
    known = {row["run"]: row for row in published.table("failures")}
    if run not in known:
        raise ValueError(f"run={run!r}: expected one of {', '.join(known)}")
    days, failed = float(known[run]["days"]), float(known[run]["failures"])
    return 24 * float(known[run]["gpus"]) * days / failed * HOUR / gpus


def lost_share(
    interval_seconds: float, save_seconds: float, mtbf: float, restart_seconds: float = 0.0
) -> float:
    """Return the share of the time for saves, restarts and half an interval lost with each failure.

    To first order (Young, Communications of the ACM 17, 1974).
    """
    return save_seconds / interval_seconds + (interval_seconds / 2 + restart_seconds) / mtbf


def young_interval(save_seconds: float, mtbf: float) -> float:
    """Return the interval with the smallest `lost_share`, which no restart's length changes."""
    return math.sqrt(2 * save_seconds * mtbf)


def daly_interval(save_seconds: float, mtbf: float) -> float:
    """Return the interval whose `effective_share` is within 0.2 % of the best.

    Equation 37 of Daly, Future Generation Computer Systems 22, 2006.
    """
    if save_seconds >= 2 * mtbf:
        return mtbf
    x = math.sqrt(save_seconds / (2 * mtbf))
    return young_interval(save_seconds, mtbf) * (1 + x / 3 + x * x / 9) - save_seconds


def effective_share(
    interval_seconds: float, save_seconds: float, mtbf: float, restart_seconds: float = 0.0
) -> float:
    """Return the share of the time that is training which counts, at any rate of failures (Daly).

    interval_seconds: of training, from the end of a save to the next. A failure may come in
    training, in a save or in a restart, and what was not saved is trained again.
    """
    done, restart = (interval_seconds + save_seconds) / mtbf, restart_seconds / mtbf
    if done + restart > 700:  # more than floats hold: nothing is ever saved
        return 0.0
    return interval_seconds / (mtbf * math.exp(restart) * math.expm1(done))


def simulate_share(
    interval_seconds: float, save_seconds: float, mtbf: float, restart_seconds: float, saves: int
) -> float:
    """Play one training with so many saves and random failures: its `effective_share`."""
    chance = random.Random(0)
    failure, clock = chance.expovariate(1 / mtbf), 0.0
    for _ in range(saves):
        needed = interval_seconds + save_seconds
        while clock + needed > failure:  # it fails on the way, and begins at the last save again
            clock, needed = failure, restart_seconds + interval_seconds + save_seconds
            failure += chance.expovariate(1 / mtbf)
        clock += needed
    return saves * interval_seconds / clock
