"""Lesson 04d: which rank is late, from what each rank timed of its own work in every step."""

import random
import statistics
import time

from bootcamp.launcher import hang
from bootcamp.launcher.launch import Options, launch
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons.reading import printed

SCRIPT = SRC / "snippets" / "ddp_stragglers.py"
LATE = 1.15  # times as long as the next slowest rank: what two healthy ranks rarely differ by
BACKWARD = "loss.backward()"


def paces(run: Run) -> Table:
    """Table each rank's ms a step, in what a tenth of the steps stay below, the undisturbed ones.

    own: its own work, before it waits for anybody; waits: from then until the averages are there.
    """
    rows = [
        {"rank": said["rank"]}
        | {
            name: 1e3 * statistics.quantiles(said[key], n=10, method="inclusive")[0]
            for name, key in (("own", "own"), ("waits", "rest"))
        }
        for said in printed(run)
    ]
    return Table(rows, "Milliseconds of a step, each rank by its own clock")


def late(run: Run) -> int | None:
    """The rank that keeps the others waiting; None where none is clearly slower than the rest."""
    *_, next_slowest, slowest = sorted(paces(run).rows, key=lambda row: row["own"])
    return slowest["rank"] if slowest["own"] > LATE * next_slowest["own"] else None


def stuck(rank: int, ranks: int = 3) -> Run:
    """A run whose ranks wait in an all-reduce for this one, which never comes; ended by launch."""
    sleeps = f"if (rank, step) == ({rank}, 2):\n    import time; time.sleep(1000)\n{BACKWARD}"
    script = variant("ddp", f"ddp_stuck_{rank}", {BACKWARD: sleeps})
    flags = {"device": "cpu", "model": "mlp", "steps": 4, "global_batch": 12, "quiet": True}
    return launch(script, ranks, raises=False, options=Options(hang_seconds=3), **flags)


def drill_late(by: float = 0.3) -> tuple[float, object]:
    """Make a random rank late and look for it: (seconds, None or what went wrong)."""
    began, who = time.monotonic(), random.randrange(2)
    run = launch(SCRIPT, 2, late=who, by=by, quiet=True)
    wrong = None if late(run) == who else f"rank {who} was late:\n{paces(run)}"
    return time.monotonic() - began, wrong


def drill_stuck(ranks: int = 3) -> tuple[float, object]:
    """Let a random rank not come to a collective; its number has to be in what the others tell."""
    began, who = time.monotonic(), random.randrange(ranks)
    found = hang.read(stuck(who, ranks))
    right = (found.kind, found.ranks) == ("missing", (who,))
    return time.monotonic() - began, None if right else f"rank {who} was stuck: {found}"
