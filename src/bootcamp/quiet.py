"""How quiet this machine is: whether two processes get two cores, and how far repeats differ.

    quiet.measure() -> Quiet

Speeds that were measured while something else was running say little. So a notebook measures this
before its first run (launcher/connection.py: warm_up), figures name it at their foot, and so does
`make preflight`.
"""

import contextlib
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median

from bootcamp import files, machine
from bootcamp.paths import LOGS

FILE = "quiet.json"
VALID_SECONDS = 600.0  # a machine's load is another one some minutes later
FOOT_SECONDS = 7200.0  # of a lesson: figures name the time beside it
WINDOWS, WINDOW_SECONDS = 12, 0.025
QUIET_CORES, QUIET_SPREAD = 0.9, 0.1  # of a second core; of one core's speed
WORK = f"""
import os, sys, time
core = int(sys.argv[1])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [core])
print("ready", flush=True)
sys.stdin.readline()
for _ in range({WINDOWS}):
    rounds, end = 0, time.perf_counter() + {WINDOW_SECONDS}
    while time.perf_counter() < end:
        sum(range(2000))
        rounds += 1
    print(rounds)
"""


@dataclass(frozen=True)
class Quiet:
    """How quiet the machine was.

    second_core: what a second process adds on a second core, 1 where it has it to itself; None on a
        machine with one core. spread: how far one core's speed goes up and down, the distance of
        its quartiles relative to its median. unix_seconds: when it was measured.
    """

    second_core: float | None
    spread: float
    unix_seconds: float

    @property
    def is_quiet(self) -> bool:
        second = 1.0 if self.second_core is None else self.second_core
        return self.spread <= QUIET_SPREAD and second >= QUIET_CORES

    @property
    def words(self) -> str:
        """One clause."""
        return "a quiet machine" if self.is_quiet else f"a busy machine ({self._numbers})"

    @property
    def _numbers(self) -> str:
        repeats = f"repeats differ by {self.spread:.0%}"
        if self.second_core is None:
            return f"one core, {repeats}"
        return f"two processes reach {1 + self.second_core:.2f} times one, {repeats}"

    @property
    def foot(self) -> str:
        """One sentence for the foot of a figure, with the time, since load comes and goes."""
        at = time.strftime("%H:%M", time.localtime(self.unix_seconds))
        return f"This was {self.words} at {at}."

    def __str__(self) -> str:
        if self.is_quiet:
            return f"This machine is quiet: {self._numbers}."
        return (
            f"This machine is busy: {self._numbers}. Times and speeds measured now may say the "
            "reverse of what is true; bytes, memory and losses are not affected."
        )


def measure() -> Quiet:
    """Measure it, in less than a second, and note it for last()."""
    cores = machine.cores()
    alone = _rounds(cores[:1])[0]
    ordered, quarter, second = sorted(alone), len(alone) // 4, None
    if len(cores) > 1:
        second = sum(map(median, _rounds(cores[:2]))) / median(alone) - 1
    spread = (ordered[-1 - quarter] - ordered[quarter]) / median(alone)
    found = Quiet(second, spread, time.time())
    with contextlib.suppress(OSError):  # a folder that can't be written: it is measured again
        files.update_json(LOGS / FILE, lambda kept: kept.update(asdict(found)))
    return found


def last(within: float = VALID_SECONDS) -> Quiet | None:
    """What was measured last on this machine, if it was `within` so many seconds."""
    kept = files.read_json(LOGS / FILE)
    try:
        found = Quiet(**kept)
    except TypeError:
        return None
    return found if 0 <= time.time() - found.unix_seconds < within else None


def _rounds(cores: list[int]) -> list[list[int]]:
    """Rounds of work in each window, one process for each core, all begun at once."""
    command = [sys.executable, "-S", "-E", "-c", WORK]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(core)], **pipes) for core in cores]
    try:
        for worker in workers:
            worker.stdout.readline()
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        return [[int(line) for line in worker.communicate()[0].split()] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
