"""python tools/bench.py [--pairs 12] [--launches 20] [--steps 60]

What the course's own machinery costs, as ratios within one run: how soon a warm launch takes its
first step, beside torchrun; and steps per second and memory of the scripts against the same loops
without a record, in alternating pairs, so that a machine whose speed drifts slows both. What
frameworks and strategies cost, their lessons measure. Prints tables and writes logs/bench.json.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

from bootcamp import machine
from bootcamp.files import write_json
from bootcamp.launcher import launch
from bootcamp.paths import LOGS
from bootcamp.scripts.variants import variant
from bootcamp.table import Table

FLAGS = {"device": "cpu", "size": "tiny", "global_batch": 32, "quiet": True}
TIMES = {"pairs": 12, "launches": 20, "steps": 60}
WARM = 5  # steps that are not counted
SCRIPTS = {  # ranks, and the line that hands the loss to the record
    "cpu": (1, "run.loss(loss.detach())"),
    "ddp": (2, "run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))"),
}
# the moments at which steps begin: what a script does between two steps counts too
TIMED = "import time\nbegan = [] if step == first else began\nbegan.append(time.perf_counter())\n"
PRINTED = (
    "began.append(time.perf_counter())\n"
    "import json\n"
    "from bootcamp import machine\n"
    'print(json.dumps({"began": began, "peak_bytes": machine.process_peak_bytes()}))\n'
)
RECORDED = {
    "with run.step(step):": f"{TIMED}with run.step(step):",
    "run.finish()": f"{PRINTED}run.finish()",
}
BARE = {
    "run = record.Run(context, model, optimizer, batches, world)": "",
    "with run.step(step):": f"{TIMED}if True:",
    "checkpoint.save(context, step, model, optimizer)": "",
    "run.finish()": f"{PRINTED}record.summary.write(context.run_dir, 'ok')",
}


def time_first_step(start: str) -> float:
    """Seconds from the call of launch to the first row of steps.jsonl."""
    began = time.time()
    run = launch.launch("ddp", 2, steps=1, start=start, **FLAGS)
    return (run.folder / "steps.jsonl").stat().st_mtime - began


def compare_starts(launches: int) -> list[dict]:
    """Seconds to the first step, by each way to start."""
    rows = []
    for start, count in (("warm", launches + 1), ("cold", 5), ("torchrun", 5)):
        seconds = [time_first_step(start) for _ in range(count)][start == "warm" :]
        middle = statistics.median(seconds)
        spread = {"median s": middle, "lowest": min(seconds), "highest": max(seconds)}
        rows.append({"start of 2 ranks": start, "launches": len(seconds), **spread})
    return rows


def measure(script: Path, ranks: int, steps: int) -> tuple[float, float]:
    """Return what a timed script prints of itself: seconds of its median step, peak bytes."""
    said = launch.launch(script, ranks, steps=steps, **FLAGS).output(0).splitlines()[-1]
    began, peak_bytes = json.loads(said).values()
    return statistics.median(b - a for a, b in itertools.pairwise(began[WARM:])), peak_bytes


def compare_script(name: str, pairs: int, steps: int) -> dict:
    """Run a script and its loop without a record in turn; the ratios of each pair."""
    ranks, loss = SCRIPTS[name]
    scripts = [
        variant(name, f"bench_{name}", RECORDED),
        variant(name, f"bench_{name}_bare", {**BARE, loss: ""}),
    ]
    speeds, memory = [], []
    for number in range(pairs + 1):
        found = {}
        for script in scripts if number % 2 else reversed(scripts):
            found[script] = measure(script, ranks, steps)
        (ours, peak), (bare, bare_peak) = map(found.get, scripts)
        speeds.append(bare / ours)
        memory.append(peak / bare_peak)
    spread = speeds[1:]  # the first pair warms the machine up
    return {
        "script": f"_train_{name}.py, {ranks} rank(s)",
        "steps/s, ratio": statistics.median(spread),
        "lowest": min(spread),
        "highest": max(spread),
        "peak memory, ratio": statistics.median(memory[1:]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, times in TIMES.items():
        parser.add_argument(f"--{name}", type=int, default=times)
    args = parser.parse_args()
    if min(vars(args).values()) < 1 or args.steps < WARM + 2:
        parser.error(f"each number is 1 or more, --steps {WARM + 2} or more")
    print(f"{machine.cpu_name()}, {len(machine.cores())} cores\n")
    starts = Table(compare_starts(args.launches), "Seconds to the first step, _train_ddp.py, tiny")
    print(starts, "\n", flush=True)
    rows = [compare_script(name, args.pairs, args.steps) for name in SCRIPTS]
    print(Table(rows, f"Scripts against their loops without a record, {args.pairs} pairs"))
    found = {"machine": machine.describe(), "starts": starts.rows, "scripts": rows}
    write_json(LOGS / "bench.json", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
