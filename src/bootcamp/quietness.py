"""Whether other programs disturb measurements: `quietness.measure()` -> Quietness.

On a quiet machine a process has its core to itself and repeats take equal times; what a second core
adds is another question. Measured before a notebook's first run, and named at figures' feet.
"""

import contextlib
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median, quantiles

from bootcamp import files, machine
from bootcamp.paths import LOGS

FILE = "quiet.json"
VALID_SECONDS = 600.0  # a machine's load is another one some minutes later
FOOT_SECONDS = 7200.0  # of a lesson: figures name the time beside it
WINDOWS, WINDOW_SECONDS = 12, 0.025
QUIET_SPREAD, QUIET_SHARE, FULL_CORE = 0.1, 0.9, 0.9
WORK = f"""
import os, sys, time
core = int(sys.argv[1])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [core])
print("ready", flush=True)
sys.stdin.readline()
began, ran = time.perf_counter(), time.process_time()
for _ in range({WINDOWS}):
    rounds, end = 0, time.perf_counter() + {WINDOW_SECONDS}
    while time.perf_counter() < end:
        sum(range(2000))
        rounds += 1
    print(rounds)
print((time.process_time() - ran) / (time.perf_counter() - began))
"""


@dataclass(frozen=True)
class Quietness:
    """The quietness of the machine at one moment.

    share: the part of its core's time that a process got. spread: of one core's speed, between its
    quartiles, relative to its median. second_core: what a second process at the same time adds to
    the speed of one, 1 for a full core; None without one.
    """

    share: float
    spread: float
    second_core: float | None
    unix_seconds: float

    @property
    def is_quiet(self) -> bool:
        return self.spread <= QUIET_SPREAD and self.share >= QUIET_SHARE

    @property
    def words(self) -> str:
        return "a quiet machine" if self.is_quiet else f"a busy machine ({self._numbers})"

    @property
    def _numbers(self) -> str:
        return f"a process gets {self.share:.0%} of its core, repeats differ by {self.spread:.0%}"

    @property
    def foot(self) -> str:
        """A sentence for the foot of a figure, with the time, since load comes and goes."""
        at = time.strftime("%H:%M", time.localtime(self.unix_seconds))
        return f"This was {self.words} at {at}."

    def __str__(self) -> str:
        if not self.is_quiet:
            return (
                f"This machine is busy: {self._numbers}. Times and speeds measured now may say the "
                "reverse of what is true; bytes, memory and losses are not affected."
            )
        text = f"This machine is quiet: {self._numbers}"
        if self.second_core is not None:
            text += f", two processes reach {1 + self.second_core:.2f} times one"
            if self.second_core < FULL_CORE:
                text += " (a second core is not a full one here)"
        return f"{text}."


def measure() -> Quietness:
    """Measure the quietness in less than a second, and record it for read_last()."""
    cores = machine.cores()
    ((*rounds, share),) = _count_rounds(cores[:1])
    low, middle, high = quantiles(rounds, n=4, method="inclusive")
    second = None
    if len(cores) > 1:
        both = _count_rounds(cores[:2])
        share = min(share, *(worker[-1] for worker in both))
        second = sum(median(worker[:-1]) for worker in both) / middle - 1
    found = Quietness(share, (high - low) / middle, second, time.time())
    with contextlib.suppress(OSError):  # a folder that can't be written: it is measured again
        files.update_json(LOGS / FILE, lambda kept: kept.update(asdict(found)))
    return found


def read_last(within_seconds: float = VALID_SECONDS) -> Quietness | None:
    """Read the last measurement on this machine; None if it is older than this."""
    try:
        found = Quietness(**files.read_json(LOGS / FILE))
    except TypeError:
        return None
    return found if 0 <= time.time() - found.unix_seconds < within_seconds else None


def _count_rounds(cores: list[int]) -> list[list[float]]:
    """Count the rounds of work in each window, by one process on each core at the same time.

    Last in each list: the part of that time in which its process ran.
    """
    command = [sys.executable, "-S", "-E", "-c", WORK]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(core)], **pipes) for core in cores]
    try:
        for worker in workers:
            worker.stdout.readline()
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        return [[float(line) for line in worker.communicate()[0].split()] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
