"""The flags that every training script shares: parsed, checked and resolved before any training."""

import argparse
import datetime
import math
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch

from bootcamp import data, machine, models, processes, record
from bootcamp.paths import LOGS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
LONGEST_TIMEOUT = 7 * 24 * 3600
OPTIMIZERS = ("adamw", "sgd")
DEVICES = ("auto", "cpu", "cuda", "meta")


class ConfigError(Exception):
    """A flag that cannot be met. Its text says what was given, what was expected, what to do."""


def parse(
    devices: tuple[str, ...] = DEVICES, own_flags: dict[str, dict] | None = None
) -> argparse.Namespace:
    """The script's flags, checked, plus what follows from them.

    devices: the values of --device that the script can train on; the first is the default.
    own_flags: the script's own, each with what argparse's add_argument takes:
        {"--hook": {"default": "none", "help": "..."}}.

    Resolved beyond the flags: `device` ("cpu", "cuda:1"), `backend` of the process group ("gloo",
    "nccl"), `timeout` as a timedelta, `run_dir` as an absolute path. The process gets its cores and
    its GPU, the random generator its seed, and rank 0 creates the run folder.

    A flag that cannot be met ends the process with exit code 2 and one sentence from rank 0.
    """
    parser = _parser(devices)
    for flag, settings in (own_flags or {}).items():
        parser.add_argument(flag, **settings)
    try:
        args = parser.parse_args()
        _check(args)
        asked = args.device
        args.device, args.backend = _resolve_device(asked)
        args.timeout = datetime.timedelta(seconds=args.timeout)
        args.run_dir = _run_dir(args.run_dir)
        args.corpus_crc32, args.first_step = None, 0
        args.own_flags = [flag.strip("-").replace("-", "_") for flag in own_flags or {}]
        if processes.rank() == 0:
            record.claim(args)
    except (ConfigError, record.FolderError) as error:
        refuse(str(error))
    _use_cores(args)
    torch.manual_seed(args.seed)
    record.report_exceptions(args.run_dir)
    if args.device == "cpu" and asked == "auto" and processes.rank() == 0:
        print(
            f"No GPU for each of {processes.local_count()} rank(s) on this host: training on CPU."
        )
    return args


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ConfigErrors, so that one rank speaks for all."""

    def error(self, message):
        raise ConfigError(f"{message[0].upper()}{message[1:]}. Run with --help to see every flag.")


def _parser(devices: tuple[str, ...]) -> argparse.ArgumentParser:
    script = sys.modules["__main__"]
    parser = _Parser(
        prog=Path(sys.argv[0]).name,
        description=script.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="gpt", help=f"one of {', '.join(models.NAMES)}")
    add("--size", default="tiny", help="the dial for size: tiny, small, medium, large, xl")
    add("--steps", type=int, default=20, help="optimizer steps")
    add("--global-batch", type=int, default=32, help="samples per step, all ranks together")
    add("--optimizer", default="adamw", choices=OPTIMIZERS, help="sgd has momentum 0.9")
    add("--lr", type=float, help="learning rate (default: adamw 1e-3, sgd 0.05)")
    add("--seed", type=int, default=0, help="decides initial parameters and order of the data")
    add("--dtype", default="float32", choices=DTYPES, help="of parameters and arithmetic")
    add("--device", default=devices[0], choices=devices, help="auto: a GPU for each rank, else CPU")
    add("--cores-per-rank", type=int, default=1, help="CPU cores that one rank computes with")
    add("--run-dir", help="a new folder for the record (default: a name of its own in logs/)")
    add("--timeout", type=float, default=120.0, help="seconds a collective may wait for a rank")
    add("--save", help="file for a checkpoint: model, optimizer and step")
    add("--save-every", type=int, default=10, help="steps between two checkpoints")
    add("--resume", help="a checkpoint to go on from; the one of --save may still be missing")
    add("--trace-step", type=int, help="profile this step into ranks/<k>.trace.json")
    return parser


def _check(args: argparse.Namespace) -> None:
    sizes = models.sizes(args.model)
    if args.size not in sizes:
        raise ConfigError(
            f"--size {args.size}: {args.model} has no such size. Choose one of {', '.join(sizes)}."
        )
    for flag in ("steps", "global_batch", "cores_per_rank", "timeout", "save_every"):
        if not getattr(args, flag) > 0:
            raise ConfigError(
                f"--{flag.replace('_', '-')} {getattr(args, flag)}: expected more than zero. "
                "Give a larger number."
            )
    args.lr = {"adamw": 1e-3, "sgd": 0.05}[args.optimizer] if args.lr is None else args.lr
    if not 0 < args.lr < math.inf:
        raise ConfigError(f"--lr {args.lr}: expected a positive number. Try 0.001.")
    world = processes.count()
    if args.global_batch % world:
        below = args.global_batch - args.global_batch % world
        nearest = f"{below} or {below + world}" if below else f"{world}"
        raise ConfigError(
            f"--global-batch {args.global_batch} does not divide over {world} ranks: every rank "
            f"needs the same number of samples. Give a multiple of {world}, such as {nearest}."
        )
    if args.timeout > LONGEST_TIMEOUT:
        raise ConfigError(
            f"--timeout {args.timeout}: expected seconds, a week at most. Give {LONGEST_TIMEOUT}."
        )
    if args.global_batch > (samples := data.sample_count(args)):
        raise ConfigError(
            f"--global-batch {args.global_batch}: the data has {samples} samples for {args.model} "
            f"at size {args.size}. Give at most that many."
        )
    if args.cores_per_rank > len(machine.cores()):
        raise ConfigError(
            f"--cores-per-rank {args.cores_per_rank}: this machine grants {len(machine.cores())} "
            "cores. Give at most that many."
        )


def _resolve_device(wanted: str) -> tuple[str, str]:
    """The device of this rank and the backend of its process group."""
    if wanted == "meta":  # a rehearsal: shapes without numbers, to see that every tensor is moved
        return "meta", "gloo"
    gpus = torch.cuda.device_count()
    if wanted == "cuda" and gpus < processes.local_count():
        found = "none" if gpus == 0 else f"only {gpus}"
        raise ConfigError(
            f"--device cuda: {processes.local_count()} rank(s) on this host need a GPU each, and "
            f"torch {torch.__version__} finds {found}. Use --device cpu, or start fewer ranks."
        )
    if wanted == "cuda" or (wanted == "auto" and gpus >= processes.local_count()):
        torch.cuda.set_device(processes.local_rank())
        return f"cuda:{processes.local_rank()}", "nccl"
    return "cpu", "gloo"


def _run_dir(given: str | None) -> Path:
    """The run folder, the same on every rank without asking another rank for it."""
    if given:
        return Path(given).resolve()
    script = Path(sys.argv[0]).stem.removeprefix("_train_")
    if processes.count() == 1:
        name = time.strftime(f"%Y%m%d-%H%M%S-{script}-{os.getpid()}")
    else:
        run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
        name = f"{script}-{run_id if run_id != 'none' else os.getppid()}"
    return LOGS / name


def _use_cores(args: argparse.Namespace) -> None:
    """Give a CPU rank its cores: the same number alone as among many ranks.

    One core is one device on a machine without GPUs. Ranks beyond the cores share them in turn. A
    rank on a GPU may run on any core: NCCL, autograd and data loading have threads of their own.
    """
    torch.set_num_threads(args.cores_per_rank)
    os.environ["OMP_NUM_THREADS"] = str(args.cores_per_rank)  # what Accelerate would set them by
    if args.device != "cpu" or not hasattr(os, "sched_setaffinity"):
        return
    cores = machine.cores()
    first = processes.local_rank() * args.cores_per_rank
    os.sched_setaffinity(0, {cores[(first + i) % len(cores)] for i in range(args.cores_per_rank)})


def refuse(why: str) -> NoReturn:
    """End before any training, exit code 2: rank 0 says why, the others wait to be ended with it.

    why: what was given, what was expected, what to do.
    """
    if processes.rank() == 0:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {why}\n")
    else:
        time.sleep(5)  # torchrun ends every rank at the first exit: let rank 0 be the first
    sys.stderr.flush()
    sys.exit(2)
