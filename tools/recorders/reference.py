"""python tools/recorders/reference.py MACHINE [--folder logs/reference] [--only NAME ...]

Record the runs that slides and figures are drawn from, each in FOLDER/MACHINE-NAME, small enough to
be committed. MACHINE names this machine in words that a reader understands, such as xeon-2core or
8xh100. Let the machine be idle: speeds are recorded too, and a run that shared its cores with
another is refused. It takes about two minutes on two cores. A line names each run that is left out
because its framework is not installed.
"""

import argparse
import gzip
import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp import machine
from bootcamp.experiments import replay
from bootcamp.launcher import launch
from bootcamp.paths import LOGS, REFERENCE, ROOT
from bootcamp.scripts.strategies import SCRIPTS
from bootcamp.scripts.variants import variant

CPU = {"device": "cpu"}
SGD = {"optimizer": "sgd"}
MLP = {"model": "mlp", "size": "small", "steps": 12, **SGD, **CPU}
STATE = {"steps": 4, "global_batch": 4, **CPU}  # one sample a rank: the state is what counts
RESUMED = {"global_batch": 16, **CPU}
WAIT = ("c10d::", "record_param_comms", "gloo:")  # no computing of the rank itself
KEPT_KINDS = ("user_annotation", "gpu_user_annotation", "kernel")  # beside computing operators
KEPT_OF_A_TRACE = ("name", "ph", "cat", "ts", "dur", "tid")


@dataclass(frozen=True)
class Wanted:
    """A run to record. Its folder is named by machine, name and ranks.

    changes: lines of the script that are replaced first, as bootcamp.scripts.variants takes them.
    phases: whether only the named parts of its trace are kept, which some figures read unpacked.
    """

    name: str
    ranks: int
    script: str
    flags: dict = field(default_factory=dict)
    changes: dict | None = None
    phases: bool = False


RUNS = [
    Wanted("cpu", 1, "cpu"),
    Wanted("gpu", 1, "gpu"),
    Wanted("ddp", 2, "ddp", {"trace_step": 10}),
    Wanted("cpu_sgd", 1, "cpu", SGD),
    Wanted("no_zero_grad", 1, "cpu", {}, {"optimizer.zero_grad()": ""}),
    Wanted("no_zero_grad_sgd", 1, "cpu", SGD, {"optimizer.zero_grad()": ""}),
    Wanted("accumulate", 1, "accumulate", {"steps": 10}),
    Wanted("activation_checkpointing", 1, "activation_checkpointing", {"steps": 10}),
    Wanted("dp_by_hand", 1, "dp_by_hand", {"replicas": 2, "trace_step": 10, **CPU}, phases=True),
    Wanted("ddp_by_hand", 2, "ddp_by_hand", {"trace_step": 10}),
    Wanted("ddp_summed", 2, "ddp_by_hand", {}, {"parameter.grad /= world": ""}),
    Wanted("mlp", 1, "cpu", MLP),
    Wanted("hook_none", 2, "ddp_options", {"hook": "none", **MLP}),
    Wanted("hook_fp16", 2, "ddp_options", {"hook": "fp16", **MLP}),
    Wanted("hook_powersgd", 2, "ddp_options", {"hook": "powersgd", **MLP}),
    Wanted("pp_whole", 2, "pp", {"schedule": "gpipe", "micro_batches": 1, "steps": 6, **CPU}),
    Wanted("pp", 2, "pp", {"schedule": "1f1b", "micro_batches": 8, "steps": 6, **CPU}),
    Wanted("tp", 2, "tp", {"steps": 12}),
    Wanted("ddp", 4, "ddp", STATE),
    Wanted("zero1", 4, "zero1", STATE),
    Wanted("zero_2", 4, "zero", {"stage": 2, **STATE}),
    Wanted("fsdp", 4, "fsdp", STATE),
    Wanted("hsdp", 4, "hsdp", {"shard": 2, **STATE}),
    Wanted("whole", 1, "cpu", {"steps": 15, **RESUMED}),
    Wanted("first", 4, "fsdp", {"steps": 5, "save": "{place}/four", **RESUMED}),
    Wanted(
        "second",
        2,
        "fsdp",
        {"steps": 10, "resume": "{place}/four", "save": "{place}/two", **RESUMED},
    ),
    Wanted("third", 1, "cpu", {"steps": 15, "resume": "{place}/two", **RESUMED}),
]


def record(wanted: Wanted, target: Path, place: Path) -> None:
    """Launch one run and keep its record in `target`. Raises LaunchError.

    place: a folder for checkpoints, which runs leave to the next ones.
    """
    script = wanted.script
    if wanted.changes is not None:
        script = variant(script, wanted.name, wanted.changes)
    flags = {"steps": 40, **wanted.flags}
    if "replicas" in flags:
        flags["cores_per_rank"] = min(flags["replicas"], len(machine.cores()))
    texts = {key: flags[key].format(place=place) for key in ("save", "resume") if key in flags}
    options = launch.Options(run_dir=place / target.name)
    run = launch.launch(script, wanted.ranks, quiet=True, options=options, **flags | texts)
    replay.keep_run(run, target)
    slim(target, wanted.phases)
    print(run, f"{sum(path.stat().st_size for path in target.rglob('*.*')) / 1e3:.0f} kB")


def slim(folder: Path, phases: bool) -> None:
    """Keep of each trace what the figures read; drop what ranks printed."""
    for path in (folder / "ranks").iterdir():
        if path.suffix in (".out", ".err"):
            path.unlink()
        elif ".trace.json" in path.name:
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rt") as file:
                traced = json.load(file)
            path.unlink()
            slimmed, name = slim_trace(traced), path.name.removesuffix(".gz")
            if not phases:
                with gzip.open(path.with_name(f"{name}.gz"), "wt") as file:
                    json.dump(slimmed, file, separators=(",", ":"))
            elif name.startswith("0."):
                events = slimmed["traceEvents"]
                named = [event for event in events if event["cat"] == "user_annotation"]
                text = json.dumps({"traceEvents": named}, separators=(",", ":"))
                path.with_name(name).write_text(text)


def slim_trace(traced: dict) -> dict:
    """The events with a length, in tenths of a µs since the first, without those inside of another
    computing operator: the union of the operators' times, which trace.py reads, stays the same, and
    so does the clock that the ranks share.
    """
    events = [e for e in traced["traceEvents"] if e.get("ph") == "X" and e.get("dur", 0) > 0]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    base = traced.get("baseTimeNanoseconds", 0) + round(1e3 * events[0]["ts"])
    kept, ends = [], {}
    for event in events:
        computes = event.get("cat") == "cpu_op" and not event["name"].startswith(WAIT)
        if computes and event["ts"] + event["dur"] <= ends.get(event["tid"], 0):
            continue
        if computes:
            ends[event["tid"]] = event["ts"] + event["dur"]
        if computes or event.get("cat") in KEPT_KINDS or _sends(event):
            kept.append({key: event[key] for key in KEPT_OF_A_TRACE if key in event})
    for event in kept:
        event["ts"] = round(event["ts"] - events[0]["ts"], 1)
        event["dur"] = round(event["dur"], 1)
    return {"traceEvents": kept, "baseTimeNanoseconds": base}


def _sends(event: dict) -> bool:
    return event["name"].startswith((*WAIT, "nccl", "training_step"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machine")
    parser.add_argument("--folder", type=Path, default=REFERENCE, help="where the records go")
    parser.add_argument("--only", nargs="*", default=[], help="such as cpu-1 ddp-2")
    args = parser.parse_args()
    if not re.fullmatch(r"[\w.-]+", args.machine):
        parser.error(f"{args.machine!r} begins names of folders: letters, digits, '.', '_', '-'")
    if (ROOT / args.folder).is_file():
        parser.error(f"--folder {args.folder} is a file: name a folder")
    gpus = launch.gpu_count()
    more = [Wanted("ddp", gpus, "ddp", {"trace_step": 10})] if gpus > 2 else []
    named = {f"{run.name}-{run.ranks}": run for run in [*RUNS, *more]}
    if unknown := [name for name in args.only if name not in named]:
        parser.error(f"no run {', '.join(unknown)}: choose from {', '.join(named)}")
    LOGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS, prefix="reference-") as place:
        for name in args.only or named:
            framework = SCRIPTS[named[name].script].framework
            if framework and not launch.available(framework):
                print(f"{name} is left out: {launch.HOW_TO_GET[framework]}")
                continue
            try:
                record(named[name], ROOT / args.folder / f"{args.machine}-{name}", Path(place))
            except replay.NotRecorded as reason:
                print(reason)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
