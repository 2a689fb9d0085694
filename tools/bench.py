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
from collections.abc import Callable
from functools import partial
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
TIMES = {"pairs": 12, "launches": 20, "steps": 60, "rounds": 7, "links": 5, "cells": 60}
START = "Seconds from the call to the first step, _train_ddp.py at size tiny"
LIVE = "4 live ranks, in seconds"
SCRIPTS = "Scripts against the barest torch loop of the same model and batch"
FRAMED = "The same training by each framework, same model, batch and ranks"
LINKS = "Two hosts with two ranks each, the MLP at size small"
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


def in_turn(tries: dict[str, Callable], rounds: int) -> dict[str, list]:
    """Try each in every round, in every second one the other way round; what each returned."""
    found = {name: [] for name in tries}
    for number in range(rounds):
        for name in tries if number % 2 else reversed(tries):
            found[name].append(tries[name]())
    return found


def beside(mine: list[float], others: list[float], name: str) -> dict:
    """Return the ratios of two that were measured in turn: median under a name, lowest, highest."""
    ratios = [a / b for a, b in zip(mine, others, strict=True)]
    return {name: statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def pairs(name: str, ranks: int, count: int, steps: int) -> dict:
    """The script and the bare loop in turn; the ratio of their medians, and of each pair.

    Two ratios of speeds: by the time from one step's beginning to the next one's, with all that the
    script does between them, and by the steps' own seconds as the record has them.
    """
    changes = {"with run.step(step):": TIMED, "run.finish()": REPORTED}
    scripts = {"ours": variant(name, f"bench_{name}", changes), "bare": TOOLS / "bare_loop.py"}
    tries = {which: partial(measured, path, ranks, steps) for which, path in scripts.items()}
    # the first pair warms the machine up
    found = {which: rows[1:] for which, rows in in_turn(tries, count + 1).items()}
    ours, bare = ([row["steps_per_second"] for row in found[which]] for which in ("ours", "bare"))
    peaks = ([row["peak_bytes"] for row in found[which]] for which in ("ours", "bare"))
    recorded = statistics.median(row["recorded"] for row in found["ours"])
    return {
        "script": f"_train_{name}.py, {ranks} rank(s)",
        "pairs": count,
        "steps/s": statistics.median(ours),
        "bare loop steps/s": statistics.median(bare),
        "ratio of medians": statistics.median(ours) / statistics.median(bare),
        "ratio, step as recorded": recorded / statistics.median(bare),
        **beside(ours, bare, "median of pairs"),
        "peak memory ratio": beside(*peaks, "median")["median"],
    }


FRAMEWORKS = ("ddp", "horovod", "lightning", "accelerate")


def frameworks(ranks: int, rounds: int, steps: int) -> list[dict]:
    """The same training by each framework, one after another; ratios to DDP within a round."""
    there = [name for name in FRAMEWORKS if name == "ddp" or launch.available(name)]
    runs = in_turn(
        {name: partial(launch.launch, name, ranks, steps=steps, **FLAGS) for name in there}, rounds
    )
    speeds = {name: [run.samples_per_second for run in runs[name]] for name in there}
    peaks = {name: [run.peak_bytes for run in runs[name]] for name in there}
    return [
        {
            "script": f"_train_{name}.py, {ranks} ranks",
            "rounds": rounds,
            "code lines": len(diff.list_code_lines(strategies.SCRIPTS[name].path)),
            "samples/s": statistics.median(speeds[name]),
            **beside(speeds[name], speeds["ddp"], "ratio to ddp (median)"),
            "MB sent per step": runs[name][0].ranks[0]["sent_bytes_per_step"] / 1e6,
            "peak memory ratio": beside(peaks[name], peaks["ddp"], "median")["median"],
        }
        for name in there
    ]


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
        same = {"link": link, **TWO_HOSTS}
        tries = {
            name: partial(launch.launch, script, 4, **same, **own)
            for name, (script, own) in SHARDED.items()
        }
        runs = in_turn(tries, rounds)
        found = {name: [run.seconds_per_step for run in runs[name]] for name in SHARDED}
        for name, seconds in found.items():
            against = [found[other] for other in ("DDP", "FSDP") if other != name]
            ahead = [a < min(others) for a, *others in zip(seconds, *against, strict=True)]
            rows.append(
                {
                    "strategy": name,
                    "link": link or "open",
                    "rounds": rounds,
                    "s per step": statistics.median(seconds),
                    **beside(seconds, found["DDP"], "ratio to DDP (median)"),
                    "faster than DDP and FSDP": sum(ahead),
                }
            )
    return rows


def start_two(args) -> list[dict]:
    """Seconds from the call to the first step, by each way to start."""
    launch.launch("ddp", 2, steps=1, **FLAGS)
    rows = []
    for start, count in (("warm", args.launches), ("cold", 5), ("torchrun", 5)):
        seconds = [first_step_seconds(start) for _ in range(count)]
        rows.append({"start of 2 ranks": start, "launches": count, **_spread(seconds)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, times in TIMES.items():
        parser.add_argument(f"--{name}", type=int, default=times)
    args = parser.parse_args()
    if min(vars(args).values()) < 1 or args.steps < WARM + 2:
        parser.error(f"each number is 1 or more, --steps {WARM + 2} or more")
    print(f"{machine.cpu_name()}, {len(machine.cores())} cores\n")
    no_live, no_hosts = live.why_not(), simulated_hosts.why_not()
    scripts = (("cpu", 1), ("ddp", 2))
    tables = {
        "starts": (START, lambda: start_two(args)),
        "live": (LIVE, lambda: [] if no_live else live_ranks(4, args.cells)),
        "scripts": (SCRIPTS, lambda: [pairs(*one, args.pairs, args.steps) for one in scripts]),
        "frameworks": (FRAMED, lambda: frameworks(2, args.rounds, args.steps)),
        "links": (LINKS, lambda: [] if no_hosts else links(args.links)),
    }
    result = {"machine": machine.describe()}
    for name, (caption, measure) in tables.items():
        result[name] = measure()
        print(Table(result[name], caption), "\n", flush=True)
    for what, why_not in (("live ranks", no_live), ("hosts, so no links", no_hosts)):
        print(f"No {what}: {why_not}\n" if why_not else "", end="")
    summary.write_json(LOGS / "bench.json", result)
    return 0


def _spread(seconds: list[float]) -> dict:
    return {"median s": statistics.median(seconds), "lowest": min(seconds), "highest": max(seconds)}


if __name__ == "__main__":
    sys.exit(main())
