"""Compare two warm runs in turns: `turns.ratios(this, that)` yields how many times as fast.

While one does some steps the other waits, on the same devices, before its next one
(records/turn.py), so what changes with time, a clock or other work, meets both alike.
"""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from bootcamp import machine
from bootcamp.launcher.connection import connect, follow, hold_interrupts
from bootcamp.launcher.launch import Call
from bootcamp.launcher.progress import Silent
from bootcamp.records import heartbeat, turn
from bootcamp.records.steps import Record, Steps

ENDLESS, WARM_UP = 1_000_000, 2  # steps: a run is stopped before; before the first turn
TURN_SECONDS, POLL_SECONDS = 0.12, 0.002  # of a side's turn, unless one step takes longer


class Side:
    """One of the two runs, which does only the steps that it is given."""

    def __init__(self, call: Call, executor: ThreadPoolExecutor):
        call.flags |= {"steps": ENDLESS}
        request, _ = call.prepare()
        self.folder, self.ranks = Path(request.run), call.ranks
        self._steps, self.rows = Steps(self.folder), list[Record]()
        turn.allow(self.folder, 0)
        self._end = executor.submit(follow, request, Silent(), raises=True)

    def wait_for(self, steps: int) -> None:
        """Wait until all ranks have done so many steps. Raises what ends the run before."""
        while True:
            self.rows += self._steps.read_new()
            done = [beat[1] for beat in heartbeat.read_all(self.folder).values()]
            if len(self.rows) >= steps and len(done) == self.ranks and min(done) >= steps:
                return
            if self._end.done():
                raise RuntimeError(f"these {steps} steps were not done: {self._end.result()}")
            time.sleep(POLL_SECONDS)

    def time_steps(self, steps: int, expected_seconds: float = 0.0) -> list[Record]:
        """Do so many steps and return their rows; sleep through most of the time they may take."""
        before = len(self.rows)
        turn.allow(self.folder, before + steps)
        time.sleep(0.8 * expected_seconds)
        self.wait_for(before + steps)
        return self.rows[before:]

    def first_core(self) -> dict[str, str]:
        """Return the variable that puts another run on the same cores, where ranks have some."""
        if not hasattr(os, "sched_getaffinity"):
            return {}
        pid = heartbeat.read_all(self.folder)[0][0]
        return {"BOOTCAMP_FIRST_CORE": str(machine.cores().index(min(os.sched_getaffinity(pid))))}

    def stop(self) -> None:
        """Stop the run, and remove its record unless it failed."""
        connect().send("stop", str(self.folder), why="interrupted")
        if isinstance(self._end.exception(), KeyboardInterrupt):
            shutil.rmtree(self.folder, ignore_errors=True)


def ratios(this: Call, that: Call) -> Iterator[float]:
    """Yield pair after pair how many times as fast `this` is per sample, until it is closed.

    In every second pair `that` comes first. Raises what ends a run.
    """
    with _started([this, that]) as sides:
        plans = []  # of each side how many steps make a turn, and their seconds
        for side in sides:
            of_step = side.time_steps(WARM_UP)[-1]["seconds"]
            steps = max(1, round(TURN_SECONDS / of_step))
            plans.append((side, steps, steps * of_step))
        for pair in itertools.count():
            order = plans if pair % 2 == 0 else plans[::-1]
            seconds = {side: _seconds_per_sample(side.time_steps(*turn)) for side, *turn in order}
            yield seconds[sides[1]] / seconds[sides[0]]


@contextmanager
def _started(calls: list[Call]) -> Iterator[list[Side]]:
    """Start a run of each call, the one with most ranks first, and stop them at the end."""
    sides: dict[int, Side] = {}
    with ThreadPoolExecutor(len(calls)) as executor:
        try:
            for call in sorted(calls, key=lambda call: -(call.ranks or 0)):
                for first in sides.values():
                    env = {**(call.options.env or {}), **first.first_core()}
                    call.options = replace(call.options, env=env)
                sides[id(call)] = side = Side(call, executor)
                side.wait_for(0)
            yield [sides[id(call)] for call in calls]
        finally:
            with hold_interrupts():
                for side in sides.values():
                    side.stop()


def _seconds_per_sample(rows: list[Record]) -> float:
    """Return the median of a turn's steps, without the first of several, which had to wake up."""
    return median(row["seconds"] / row["samples"] for row in rows[len(rows) > 2 :])
