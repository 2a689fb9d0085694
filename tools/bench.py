"""python tools/bench.py [--pairs 12] [--launches 20] [--rounds 7] [--links 5] [--cells 60]

Speed and memory of the course's own machinery, as ratios within one run:

- how soon a warm launch takes its first step, beside torchrun;
- how soon live ranks are there, and a cell's way to them and back, beside a warm launch;
- steps per second of the scripts against the barest torch loop of the same model and batch, in
  alternating pairs, so that a machine whose speed drifts slows both;
- throughput and memory of the frameworks beside the bare DDP script, in rounds of one run each;
- DDP, FSDP and HSDP on two hosts, their link open and slow, in rounds too.

Prints tables and writes logs/bench.json.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.launcher import live_ranks as live
from bootcamp.paths import LOGS, SRC
from bootcamp.records import summary
from bootcamp.scripts import diff, strategies
from bootcamp.scripts.variants import variant
from bootcamp.table import Table

TOOLS = Path(__file__).resolve().parent
FLAGS = {"device": "cpu", "size": "tiny", "global_batch": 32, "quiet": True}
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


def first_step_seconds(start: str, world: int = 2) -> float:
    """Seconds from the call of launch to the first row of steps.jsonl."""
    began = time.time()
    run = launch.launch("ddp", world, steps=1, start=start, **FLAGS)
    return (run.folder / "steps.jsonl").stat().st_mtime - began


def live_ranks(count: int, cells: int) -> list[dict]:
    """Seconds from start to ready, and of a cell with an all-reduce; ratios to a warm launch.

    The launch does the same all-reduce on as many ranks, in turn with the cells.
    """
    began = time.perf_counter()
    live.start(count)
    live.run("numbers = torch.ones(1000)", show=lambda _: None)
    ready = time.perf_counter() - began
    cell, launched = [], []
    for number in range(cells):
        cell.append(_seconds(live.run, "dist.all_reduce(numbers)", show=lambda _: None))
        if number % 10 == 0:
            once = (SRC / "snippets" / "start_with_torchrun.py", count)
            launched.append(_seconds(launch.launch, *once, quiet=True))
    live.stop()
    alone = statistics.median(launched)
    found = {"start to first cell": [ready], "cell, there and back": cell, "warm launch": launched}
    return [
        {"what": what, "times": len(seconds), **_spread(seconds)}
        | {"ratio to a launch": statistics.median(seconds) / alone}
        for what, seconds in found.items()
    ]


def _seconds(function, *arguments, **options) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began


def measured(script: Path, ranks: int, steps: int) -> dict:
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


def pairs(name: str, ranks: int, count: int, steps: int) -> dict:
    """The script and the bare loop in turn; the ratio of their medians, and of each pair.

    Two ratios of speeds: by the time from one step's beginning to the next one's, with all that the
    script does between them, and by the steps' own seconds as the record has them.
    """
    step_line = "with run.step(step):"
    ours = variant(name, f"bench_{name}", {step_line: TIMED, "run.finish()": REPORTED})
    bare = TOOLS / "bare_loop.py"
    rows = []
    for number in range(count + 1):
        order = [(ours, True), (bare, False)]
        both = {}
        for script, is_ours in order if number % 2 else reversed(order):
            both[is_ours] = measured(script, ranks, steps)
        if number:  # the first pair warms the machine up
            rows.append(both)
    wall = [row[True]["steps_per_second"] for row in rows]
    bare_wall = [row[False]["steps_per_second"] for row in rows]
    recorded = [row[True]["recorded"] for row in rows]
    each = [a / b for a, b in zip(wall, bare_wall, strict=True)]
    memory = [row[True]["peak_bytes"] / row[False]["peak_bytes"] for row in rows]
    return {
        "script": f"_train_{name}.py, {ranks} rank(s)",
        "pairs": count,
        "steps/s": statistics.median(wall),
        "bare loop steps/s": statistics.median(bare_wall),
        "ratio of medians": statistics.median(wall) / statistics.median(bare_wall),
        "ratio, step as recorded": statistics.median(recorded) / statistics.median(bare_wall),
        "median of pairs": statistics.median(each),
        "lowest": min(each),
        "highest": max(each),
        "peak memory ratio": statistics.median(memory),
    }


FRAMEWORKS = ("ddp", "horovod", "lightning", "accelerate")


def frameworks(ranks: int, rounds: int, steps: int) -> list[dict]:
    """The same training by each framework, one after another; ratios to DDP within a round."""
    there = [name for name in FRAMEWORKS if name == "ddp" or launch.available(name)]
    runs = {name: [] for name in there}
    for number in range(rounds):
        for name in there if number % 2 else reversed(there):
            runs[name].append(launch.launch(name, ranks, steps=steps, **FLAGS))
    rows = []
    for name in there:
        beside = list(zip(runs[name], runs["ddp"], strict=True))
        ratios = [mine.samples_per_second / bare.samples_per_second for mine, bare in beside]
        rows.append(
            {
                "script": f"_train_{name}.py, {ranks} ranks",
                "rounds": rounds,
                "code lines": len(diff.list_code_lines(strategies.SCRIPTS[name].path)),
                "samples/s": statistics.median(run.samples_per_second for run in runs[name]),
                "ratio to ddp (median)": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "MB sent per step": runs[name][0].ranks[0]["sent_bytes_per_step"] / 1e6,
                "peak memory ratio": statistics.median(
                    a.peak_bytes / b.peak_bytes for a, b in beside
                ),
            }
        )
    return rows


SHARDED = {
    "DDP": ("ddp", {}),
    "DDP, fp16 hook": ("ddp_options", {"hook": "fp16"}),
    "FSDP": ("fsdp", {}),
    "FSDP, kept gathered": ("fsdp", {"keep_gathered": True}),
    "HSDP": ("hsdp", {"shard": 2}),
}
TWO_HOSTS = {**FLAGS, "model": "mlp", "size": "small", "steps": 8, "hosts": 2}


def links(rounds: int) -> list[dict]:
    """Seconds per step of each strategy on 2 x 2 ranks, and how often it was the fastest of three.

    The three are DDP, FSDP and itself.
    """
    rows = []
    for link in (None, "200mbit"):
        found = {name: [] for name in SHARDED}
        for number in range(rounds):
            for name in SHARDED if number % 2 else reversed(SHARDED):
                script, own = SHARDED[name]
                run = launch.launch(script, 4, link=link, **TWO_HOSTS, **own)
                found[name].append(run.seconds_per_step)
        for name, seconds in found.items():
            ahead = [all(a < b for b in both) for a, *both in _beside(found, name)]
            ratios = [mine / ddp for mine, ddp in zip(seconds, found["DDP"], strict=True)]
            rows.append(
                {
                    "strategy": name,
                    "link": link or "open",
                    "rounds": rounds,
                    "s per step": statistics.median(seconds),
                    "ratio to DDP (median)": statistics.median(ratios),
                    "lowest": min(ratios),
                    "highest": max(ratios),
                    "faster than DDP and FSDP": sum(ahead),
                }
            )
    return rows


def _beside(found: dict[str, list[float]], name: str) -> list[tuple[float, ...]]:
    """A strategy's seconds in each round, with those of the ones that it is held against."""
    against = [found[other] for other in ("DDP", "FSDP") if other != name]
    return list(zip(found[name], *against, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--links", type=int, default=5)
    parser.add_argument("--cells", type=int, default=60)
    args = parser.parse_args()
    if min(vars(args).values()) < 1 or args.steps < WARM + 2:
        parser.error(f"each number is 1 or more, --steps {WARM + 2} or more")
    print(f"{machine.cpu_name()}, {len(machine.cores())} cores\n")
    launch.launch("ddp", 2, steps=1, **FLAGS)
    rows = []
    for start, count in (("warm", args.launches), ("cold", 5), ("torchrun", 5)):
        seconds = [first_step_seconds(start) for _ in range(count)]
        rows.append({"start of 2 ranks": start, "launches": count, **_spread(seconds)})
    starts = Table(rows, "Seconds from the call to the first step, _train_ddp.py at size tiny")
    print(starts, "\n", flush=True)
    why_not = live.why_not()
    caption = f"4 live ranks, in seconds{f': none, {why_not}' if why_not else ''}"
    lively = Table([] if why_not else live_ranks(4, args.cells), caption)
    print(lively, "\n", flush=True)
    ratios = [pairs("cpu", 1, args.pairs, args.steps), pairs("ddp", 2, args.pairs, args.steps)]
    table = Table(ratios, "Scripts against the barest torch loop of the same model and batch")
    print(table, "\n", flush=True)
    caption = "The same training by each framework, same model, batch and ranks"
    beside = Table(frameworks(2, args.rounds, args.steps), caption)
    print(beside, "\n", flush=True)
    if why_not := simulated_hosts.why_not():
        print(f"No hosts here, so no links: {why_not}")
    caption = "Two hosts with two ranks each, the MLP at size small"
    sharded = Table([] if why_not else links(args.links), caption)
    print(sharded)
    result = {"machine": machine.describe(), "starts": starts.rows, "scripts": table.rows}
    result |= {"live": lively.rows}
    result |= {"frameworks": beside.rows, "links": sharded.rows}
    summary.write_json(LOGS / "bench.json", result)
    return 0


def _spread(seconds: list[float]) -> dict:
    return {"median s": statistics.median(seconds), "lowest": min(seconds), "highest": max(seconds)}


if __name__ == "__main__":
    sys.exit(main())
