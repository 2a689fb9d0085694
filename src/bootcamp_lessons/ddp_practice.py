"""Lessons 04b and 04e: DDP clipped, compiled, accumulated, evaluated; ranks late or stuck."""

import statistics
from pathlib import Path

from bootcamp.experiments import equality
from bootcamp.launcher.launch import Options, launch
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons.excerpts import parse_printed

CLIP = 0.5
FLAGS = {**equality.settings(2), "quiet": True}
STEP, FINISH = "optimizer.step()", "run.finish()"
CLIPPED = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {CLIP})\n{STEP}"
GRAPHS = 'print("graphs:", torch._dynamo.utils.counters["aot_autograd"]["total"])'
ACCUMULATE = SRC / "snippets" / "ddp_accumulate.py"
STRAGGLERS = SRC / "snippets" / "ddp_stragglers.py"
LATE = 1.15  # times as long as the next slowest rank: what two healthy ranks rarely differ by
BACKWARD = "loss.backward()"


def launch_baseline(start=launch, **flags) -> Run:
    """Train one process on the CPU that clips the gradient. start: what launches it."""
    script = variant("gpu", "gpu_clipped", {STEP: CLIPPED})
    return start(script, 1, **{"device": "cpu", **FLAGS, **flags})


def make_compiled_script() -> Path:
    """Make a variant of ddp_in_practice that prints how many graphs its backend got."""
    changes = {FINISH: f"{GRAPHS}\n{FINISH}"}
    return variant("ddp_in_practice", "ddp_counts_graphs", changes)


def make_accumulating_script() -> Path:
    """Make a script with micro-batches, `no_sync`, and one clipping behind the last of them."""
    return variant(ACCUMULATE, "ddp_accumulate_clipped", {STEP: CLIPPED})


def compare_evaluations(runs: list[Run]) -> Table:
    """Compare the ways of ddp_evaluate.py in each run: what its rank 0 holds for the result."""
    columns, rows = ("ranks", "way", "loss", "accuracy"), []
    for run in runs:
        first = {}  # of each way: rank 0's
        for printed in parse_printed(run):
            first.setdefault(printed["way"], {name: printed[name] for name in columns})
        rows += first.values()
    return Table(rows, "41 samples, evaluated in three ways")


def table_paces(run: Run) -> Table:
    """Table each rank's milliseconds of a step: the first decile, of the undisturbed steps.

    own: its own work, before it waits for anybody; until averaged: from then on, sending included.
    """
    rows = []
    for said in parse_printed(run):
        row = {"rank": said["rank"]}
        for name, key in (("own", "own"), ("until averaged", "rest")):
            row[name] = 1e3 * statistics.quantiles(said[key], n=10, method="inclusive")[0]
        rows.append(row)
    return Table(rows, "Milliseconds of a step, each rank by its own clock")


def find_straggler(run: Run) -> int | None:
    """Return the rank that keeps the others waiting; None where none is clearly slower."""
    *_, next_slowest, slowest = sorted(table_paces(run).rows, key=lambda row: row["own"])
    return slowest["rank"] if slowest["own"] > LATE * next_slowest["own"] else None


def launch_stuck(rank: int, ranks: int = 3) -> Run:
    """Launch ranks that wait in an all-reduce for one that never comes, until launch ends them."""
    sleeps = f"if (rank, step) == ({rank}, 2):\n    import time; time.sleep(1000)\n{BACKWARD}"
    script = variant("ddp", f"ddp_stuck_{rank}", {BACKWARD: sleeps})
    flags = {"device": "cpu", "model": "mlp", "steps": 4, "global_batch": 12, "quiet": True}
    return launch(script, ranks, raises=False, options=Options(hang_seconds=3), **flags)
