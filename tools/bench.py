"""python tools/bench.py [--pairs 12] [--launches 20] [--steps 60]

What the course's own machinery costs, as ratios within one run: how soon a warm launch takes its
first step, beside torchrun; and steps per second and memory of the scripts against the barest torch
loop of the same model and batch, in alternating pairs, so that a machine whose speed drifts slows
both. What frameworks and strategies cost, their lessons measure. Prints tables and writes
logs/bench.json.
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

BARE = Path(__file__).with_name("bare_loop.py")
FLAGS = {"device": "cpu", "size": "tiny", "global_batch": 32, "quiet": True}
TIMES = {"pairs": 12, "launches": 20, "steps": 60}
WARM = 5  # steps that neither a script nor a bare loop counts
# the moments at which steps begin: what a script does between two steps counts too
TIMED = (
    "import time\n"
    "began = [] if step == first else began\n"
    "began.append(time.perf_counter())\n"
    "with run.step(step):"
)
REPORTED = (
    "began.append(time.perf_counter())\n"
    "import json\n"
    "from bootcamp.train import memory_usage\n"
    'peak = memory_usage.read_peak_bytes(__import__("torch").device("cpu"))\n'
    'print(json.dumps({"began": began, "peak_bytes": peak}))\n'
    "run.finish()"
)


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


def measure(script: Path, ranks: int, steps: int) -> dict:
    """What a timed script prints of itself: steps per second, by the median step; peak bytes.

    The median, not the mean: what else the machine does slows some steps of a run, and few of them
    are those of the run beside it. "recorded": the same by the record, if there is one.
    """
    run = launch.launch(script, ranks, steps=steps, **FLAGS)
    said = json.loads(run.output(0).splitlines()[-1])
    seconds = [b - a for a, b in itertools.pairwise(said["began"])][WARM:]
    recorded = [row["seconds"] for row in run.steps[WARM:]]
    return {
        "peak_bytes": said["peak_bytes"],
        "steps_per_second": 1 / statistics.median(seconds),
        "recorded": 1 / statistics.median(recorded) if recorded else None,
    }


def compare_script(name: str, ranks: int, pairs: int, steps: int) -> dict:
    """The script and the bare loop in turn; the ratio of their medians, and of each pair.

    Two ratios of speeds: by the time from one step's beginning to the next one's, with all that the
    script does between them, and by the steps' own seconds as the record has them.
    """
    changes = {"with run.step(step):": TIMED, "run.finish()": REPORTED}
    scripts = {"ours": variant(name, f"bench_{name}", changes), "bare": BARE}
    found = {"ours": [], "bare": []}
    for number in range(pairs + 1):
        for which in scripts if number % 2 else reversed(scripts):
            found[which].append(measure(scripts[which], ranks, steps))

    def column(which: str, value: str) -> list[float]:
        return [row[value] for row in found[which][1:]]  # the first pair warms the machine up

    ours, bare = (column(which, "steps_per_second") for which in scripts)
    peaks = zip(column("ours", "peak_bytes"), column("bare", "peak_bytes"), strict=True)
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    middle = statistics.median(bare)
    return {
        "script": f"_train_{name}.py, {ranks} rank(s)",
        "steps/s": statistics.median(ours),
        "bare loop steps/s": middle,
        "ratio of medians": statistics.median(ours) / middle,
        "ratio, step as recorded": statistics.median(column("ours", "recorded")) / middle,
        "median of pairs": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "peak memory ratio": statistics.median(a / b for a, b in peaks),
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
    rows = [compare_script(*one, args.pairs, args.steps) for one in (("cpu", 1), ("ddp", 2))]
    print(Table(rows, f"Scripts against the barest torch loop, {args.pairs} pairs"))
    found = {"machine": machine.describe(), "starts": starts.rows, "scripts": rows}
    write_json(LOGS / "bench.json", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
