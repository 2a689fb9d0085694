"""Lesson 04d: the clipped baseline, DDP with what people add to it, and what is compared."""

from pathlib import Path

from bootcamp.experiments import equality
from bootcamp.launcher.launch import launch
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons.reading import printed

CLIP = 0.5
FLAGS = {**equality.settings(2), "quiet": True}
STEP, FINISH = "optimizer.step()", "run.finish()"
CLIPPED = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {CLIP})\n{STEP}"
GRAPHS = 'print("graphs:", torch._dynamo.utils.counters["stats"]["unique_graphs"])'
ACCUMULATE = SRC / "snippets" / "ddp_accumulate.py"


def baseline(start=launch, **flags) -> Run:
    """One process on the CPU that clips the gradient of the batch. start: what launches it."""
    script = variant("gpu", "gpu_clipped", {STEP: CLIPPED})
    return start(script, 1, **{"device": "cpu", **FLAGS, **flags})


def compiled() -> Path:
    """The script of the family, which also prints how many graphs its compiler got."""
    changes = {FINISH: f"{GRAPHS}\n{FINISH}"}
    return variant("ddp_in_practice", "ddp_counts_graphs", changes)


def accumulated() -> Path:
    """Micro-batches, `no_sync`, and one clipping behind the last of them."""
    return variant(ACCUMULATE, "ddp_accumulate_clipped", {STEP: CLIPPED})


def evaluations(runs: list[Run]) -> Table:
    """A row for each run of ddp_evaluate.py and each way: what its rank 0 holds for the result."""
    said = [next(r for r in printed(run) if r["way"] == way) for run in runs for way in _ways(run)]
    rows = [{name: row[name] for name in ("ranks", "way", "loss", "accuracy")} for row in said]
    return Table(rows, "41 samples, evaluated in three ways")


def _ways(run: Run) -> list[str]:
    return list(dict.fromkeys(row["way"] for row in printed(run)))
