"""python tools/bench.py [--pairs 12] [--launches 20]

Speed and memory of the course's own machinery, as ratios within one run:

- how soon a warm launch takes its first step, beside torchrun;
- steps per second of the scripts against the barest torch loop of the same model and batch, in
  alternating pairs, so that a machine whose speed drifts slows both.

Prints tables and writes logs/bench.json.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from bootcamp import launch, machine, summary
from bootcamp.paths import LOGS
from bootcamp.table import Table
from bootcamp.variant import variant

TOOLS = Path(__file__).resolve().parent
FLAGS = {"device": "cpu", "size": "tiny", "global_batch": 32, "quiet": True}
STEP_LINES = {
    "cpu": "run.step(step, loss.detach())",
    "ddp": "run.step(step, mean_loss)",
}
TIMED = "{line}\nif step == 4:\n    import time\n    began = time.perf_counter()"
REPORTED = (
    "rate = (args.steps - 5) / (time.perf_counter() - began)\n"
    "import json\n"
    'peak = record.peak_bytes(__import__("torch").device("cpu"))\n'
    'print(json.dumps({"steps_per_second": rate, "peak_bytes": peak}))\n'
    "run.finish()"
)


def first_step_seconds(start: str, world: int = 2) -> float:
    """Seconds from the call of launch to the first row of steps.jsonl."""
    began = time.time()
    run = launch.launch("ddp", world, steps=1, start=start, **FLAGS)
    return (run.folder / "steps.jsonl").stat().st_mtime - began


def measured(script: Path, ranks: int, steps: int, finishes: bool) -> dict:
    """What a timed script prints of itself."""
    run = launch.launch(script, ranks, steps=steps, finishes=finishes, **FLAGS)
    return json.loads(run.output(0).splitlines()[-1])


def pairs(name: str, ranks: int, count: int, steps: int) -> dict:
    """The script and the bare loop in turn; the median of the pairs' ratios."""
    line = STEP_LINES[name]
    ours = variant(name, f"bench_{name}", {line: TIMED.format(line=line), "run.finish()": REPORTED})
    bare = TOOLS / f"bare_{name}.py"
    rows = []
    for number in range(count + 1):
        order = [(ours, True), (bare, False)]
        both = {}
        for script, finishes in order if number % 2 else reversed(order):
            both[finishes] = measured(script, ranks, steps, finishes)
        if number:  # the first pair warms the machine up
            rows.append(both)
    speed = [row[True]["steps_per_second"] / row[False]["steps_per_second"] for row in rows]
    memory = [row[True]["peak_bytes"] / row[False]["peak_bytes"] for row in rows]
    return {
        "script": f"_train_{name}.py, {ranks} rank(s)",
        "pairs": count,
        "steps/s": statistics.median(row[True]["steps_per_second"] for row in rows),
        "bare loop steps/s": statistics.median(row[False]["steps_per_second"] for row in rows),
        "ratio (median)": statistics.median(speed),
        "lowest": min(speed),
        "highest": max(speed),
        "peak memory ratio": statistics.median(memory),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    print(f"{machine.cpu_name()}, {len(machine.cores())} cores\n")
    launch.launch("ddp", 2, steps=1, **FLAGS)
    rows = []
    for start, count in (("warm", args.launches), ("cold", 5), ("torchrun", 5)):
        seconds = [first_step_seconds(start) for _ in range(count)]
        rows.append({"start of 2 ranks": start, "launches": count, **_spread(seconds)})
    starts = Table(rows, "Seconds from the call to the first step, _train_ddp.py at size tiny")
    print(starts, "\n", flush=True)
    ratios = [pairs("cpu", 1, args.pairs, args.steps), pairs("ddp", 2, args.pairs, args.steps)]
    table = Table(ratios, "Scripts against the barest torch loop of the same model and batch")
    print(table)
    result = {"machine": machine.describe(), "starts": starts.rows, "scripts": table.rows}
    summary.write_json(LOGS / "bench.json", result)
    return 0


def _spread(seconds: list[float]) -> dict:
    return {"median s": statistics.median(seconds), "lowest": min(seconds), "highest": max(seconds)}


if __name__ == "__main__":
    sys.exit(main())
