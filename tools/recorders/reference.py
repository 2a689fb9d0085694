"""python tools/recorders/reference.py MACHINE [--folder logs/reference] [--only NAME ...]

Record the runs that slides and figures are drawn from, each in FOLDER/MACHINE-NAME, small enough to
be committed. MACHINE names this machine in words that a reader understands, such as xeon-2core or
8xh100. Let the machine be idle: speeds are recorded too, and a run that shared its cores with
another is refused. It takes about two minutes on two cores. A line names each run that is left out
because its framework is not installed.
"""

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp import machine
from bootcamp.experiments import replay
from bootcamp.launcher import launch
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.scripts.strategies import SCRIPTS
from bootcamp.scripts.variants import variant

CPU = {"device": "cpu"}
SGD = {"optimizer": "sgd"}
MLP = {"model": "mlp", "size": "small", "steps": 12, **SGD, **CPU}
STATE = {"steps": 4, "global_batch": 4, **CPU}  # one sample a rank: the state is what counts
RESUMED = {"global_batch": 16, **CPU}


@dataclass(frozen=True)
class Wanted:
    """A run to record. Its folder is named by machine, name and ranks.

    changes: lines of the script that are replaced first, as bootcamp.scripts.variants takes them.
    """

    name: str
    ranks: int
    script: str
    flags: dict = field(default_factory=dict)
    changes: dict | None = None


RUNS = [
    Wanted("cpu", 1, "cpu"),
    Wanted("gpu", 1, "gpu"),
    Wanted("ddp", 2, "ddp", {"trace_step": 10}),
    Wanted("cpu_sgd", 1, "cpu", SGD),
    Wanted("no_zero_grad", 1, "cpu", {}, {"optimizer.zero_grad()": ""}),
    Wanted("no_zero_grad_sgd", 1, "cpu", SGD, {"optimizer.zero_grad()": ""}),
    Wanted("accumulate", 1, "accumulate", {"steps": 10}),
    Wanted("activation_checkpointing", 1, "activation_checkpointing", {"steps": 10}),
    Wanted("dp_by_hand", 1, "dp_by_hand", {"replicas": 2, "trace_step": 10, **CPU}),
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
    print(run, f"{sum(path.stat().st_size for path in target.rglob('*.*')) / 1e3:.0f} kB")


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
                record(named[name], args.folder / f"{args.machine}-{name}", Path(place))
            except replay.NotRecorded as reason:
                print(reason)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
