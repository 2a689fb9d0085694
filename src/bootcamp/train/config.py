"""The flags that every training script shares: parsed, checked and resolved before any training."""

import argparse
import datetime
import math
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path

import torch

from bootcamp import machine
from bootcamp.train import data, environment, models, process_end, run_folder
from bootcamp.train.refusal import ConfigError, refuse
from bootcamp.train.run_context import RunContext, shares

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
DEFAULT_TIMEOUT = 120.0  # seconds
LONGEST_TIMEOUT = 7 * 24 * 3600
RATES = {"adamw": 1e-3, "sgd": 0.05}
DEVICES = ("auto", "cpu", "cuda", "meta")


def parse(
    devices: tuple[str, ...] = DEVICES,
    own_flags: dict[str, dict] | None = None,
    mesh: tuple[str, ...] = ("data",),
    devices_per_rank: int = 1,
    mixed_devices: bool = False,
) -> tuple[argparse.Namespace, RunContext]:
    """Start the run: return the script's flags and the context that follows from them here.

    devices: the values of --device that the script can train on; the first is the default.
    own_flags: the script's own, {"--hook": {"default": "none", "help": "..."}} as in argparse.
    mesh: the axes of the ranks; with several, such as ("data", "tensor"), --mesh 2x2 sizes them.
    devices_per_rank: in `context.devices`; without enough GPUs all of them are the CPU.
    mixed_devices: whether one process with one GPU may take the CPU as its second device.

    Rank 0 claims the folder; cores, GPU and seed are set. A flag that can't be met ends the process
    with exit code 2 and one sentence from rank 0.
    """
    own_flags = own_flags or {}
    try:
        parser = _parser(devices)
        if len(mesh) > 1:
            parser.add_argument("--mesh", help=f"ranks along {' x '.join(mesh)}, such as 2x2")
        for flag, settings in own_flags.items():
            parser.add_argument(flag, **settings)
        args = parser.parse_args()
        _check(args)
        sizes = _mesh(getattr(args, "mesh", None), mesh)
        _check_batch(args, shares(mesh, sizes))
        chosen, backend = _resolve_devices(args.device, devices_per_rank, mixed_devices)
    except ConfigError as error:
        refuse(str(error))
    context = RunContext(
        args=args,
        devices=chosen,
        backend=backend,
        timeout=datetime.timedelta(seconds=args.timeout),
        run_dir=run_folder.find(args.run_dir),
        axes=mesh,
        mesh=sizes,
        own_flags=[flag.strip("-").replace("-", "_") for flag in own_flags],
    )
    start(context)
    torch.manual_seed(args.seed)
    if environment.rank() == 0:
        _print_devices(context)
    return args, context


def start(context: RunContext) -> None:
    """Begin the run: claim its folder, keep to this rank's cores, report exceptions."""
    if environment.rank() == 0:
        run_folder.claim(context)
    use_cores(context.device, context.args.cores_per_rank)
    torch.backends.cudnn.allow_tf32 = False  # it is by default: convolutions and LSTMs would round
    process_end.report_exceptions(context.run_dir)


def _print_devices(context: RunContext) -> None:
    """Print what this rank trains on where the flags left it open."""
    devices = context.devices
    if context.device == "cpu" and context.args.device == "auto":
        ranks = environment.local_count()
        print(f"No GPU for each of {ranks} rank(s) on this host: training on CPU.")
    if len(set(devices)) > 1:
        slow = ": what is on the CPU is computed at its speed" if "cpu" in devices else ""
        print(f"Rank 0 trains on {' and '.join(devices)}{slow}.")
    elif len(devices) > 1:
        print(
            f"Each rank's {len(devices)} devices are one and the same here, {devices[0]}: "
            "everything runs, and nothing is gained."
        )


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ConfigErrors, so that one rank speaks for all."""

    def error(self, message):
        flags = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        near = [get_close_matches(flag, self._option_string_actions, n=1) for flag in flags]
        hint = f" Did you mean {max(near)[0]}?" if "unrecognized" in message and any(near) else ""
        raise ConfigError(
            f"{message[0].upper()}{message[1:]}.{hint} Run with --help to see every flag."
        )


def _parser(devices: tuple[str, ...]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=Path(sys.argv[0]).name,
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="gpt", help=f"one of {', '.join(models.NAMES)}")
    add("--size", default="tiny", help="the dial for size: tiny, small, medium, large, xl")
    add("--kv-heads", type=int, help="key-value heads (gpt; default: one for each query head)")
    add("--steps", type=int, default=20, help="optimizer steps")
    add("--global-batch", type=int, default=32, help="samples per step, all ranks together")
    add("--optimizer", default="adamw", choices=RATES, help="sgd has momentum 0.9")
    add("--lr", type=float, help="learning rate (default: adamw 1e-3, sgd 0.05)")
    add("--seed", type=int, default=0, help="decides initial parameters and order of the data")
    add("--dtype", default="float32", choices=DTYPES, help="of parameters and arithmetic")
    add("--device", default=devices[0], choices=devices, help="auto: a GPU for each rank, else CPU")
    add("--cores-per-rank", type=int, default=1, help="CPU cores that one rank computes with")
    add("--run-dir", help="a new folder for the record (default: the launcher's, else in logs/)")
    add("--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds to wait in a collective")
    add("--save", help="place of a checkpoint: model, optimizer and step")
    add("--save-async", action="store_true", help="write it while training goes on")
    add("--save-every", type=int, default=10, help="steps between two checkpoints")
    add("--resume", help="a checkpoint to go on from; the one of --save may still be missing")
    add("--trace-step", type=int, help="profile this step into ranks/<k>.trace.json")
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for values that no machine could meet; fill in the learning rate."""
    sizes = models.sizes(args.model)
    if args.size not in sizes:
        raise ConfigError(
            f"--size {args.size}: {args.model} has no such size. Choose one of {', '.join(sizes)}."
        )
    heads = models.FAMILIES[args.model].SIZES[args.size].get("heads")
    if args.kv_heads is not None and (heads is None or args.kv_heads < 1 or heads % args.kv_heads):
        raise ConfigError(
            f"--kv-heads {args.kv_heads}: {args.model} at size {args.size} has {heads or 'no'} "
            "heads of queries. Give a number that divides gpt's."
        )
    for name in ("steps", "global_batch", "cores_per_rank", "timeout", "save_every"):
        if not getattr(args, name) > 0:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(args, name)}: expected more than zero. "
                "Give a larger number."
            )
    args.lr = RATES[args.optimizer] if args.lr is None else args.lr
    if not 0 < args.lr < math.inf:
        raise ConfigError(f"--lr {args.lr}: expected a positive number. Try 0.001.")
    if args.timeout > LONGEST_TIMEOUT:
        raise ConfigError(
            f"--timeout {args.timeout}: expected seconds, a week at most. Give {LONGEST_TIMEOUT}."
        )
    if args.cores_per_rank > (cores := len(machine.cores())):
        raise ConfigError(
            f"--cores-per-rank {args.cores_per_rank}: this machine grants {cores} cores. "
            "Give at most that many."
        )


def _check_batch(args: argparse.Namespace, shares: int) -> None:
    """Raise ConfigError for a global batch that the data or the ranks don't allow."""
    if args.global_batch > (samples := len(data.dataset(args))):
        raise ConfigError(
            f"--global-batch {args.global_batch}: the data has {samples} samples for {args.model} "
            f"at size {args.size}. Give at most that many."
        )
    if args.global_batch % shares:
        below = args.global_batch - args.global_batch % shares
        nearest = f"{below} or {below + shares}" if below else f"{shares}"
        sharers = "ranks: every rank" if shares == environment.count() else "models: each of them"
        raise ConfigError(
            f"--global-batch {args.global_batch} does not divide over {shares} {sharers} "
            f"needs the same number of samples. Give a multiple of {shares}, such as {nearest}."
        )


def _mesh(given: str | None, axes: tuple[str, ...]) -> tuple[int, ...]:
    """Size each axis: as given, else 2 ranks along each but the first, from the last on."""
    world = environment.count()
    if given is None:
        return _halved(world, axes)
    sizes = given.lower().split("x")
    if len(sizes) != len(axes) or not all(re.fullmatch(r"[1-9]\d*", s, re.ASCII) for s in sizes):
        raise ConfigError(
            f"--mesh {given}: expected {len(axes)} numbers, {' x '.join(axes)}, such as 2x2."
        )
    mesh = tuple(map(int, sizes))
    if math.prod(mesh) != world:
        raise ConfigError(
            f"--mesh {given}: {' x '.join(axes)} is {' x '.join(sizes)} = {math.prod(mesh)} ranks, "
            f"and {world} were started. Give sizes that multiply to {world}."
        )
    return mesh


def _halved(world: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    mesh, left = [], world
    for axis in reversed(axes[1:]):
        if left > 1 and left % 2:
            alone = "x".join(["1"] * (len(axes) - 1))
            raise ConfigError(
                f"{world} ranks over {', '.join(axes)}: {left} ranks have no half to lie along "
                f"{axis}. Start a multiple of {2 ** (len(axes) - 1)}, or say "
                f"--mesh {world}x{alone} or --mesh {alone}x{world}."
            )
        mesh.insert(0, min(2, left))
        left = max(1, left // 2)
    return (left, *mesh)


def _resolve_devices(wanted: str, each: int, mixed: bool = False) -> tuple[list[str], str]:
    """Choose the devices of this rank and the backend of its process group."""
    if wanted == "meta":  # a rehearsal: shapes without numbers, to see that every tensor is moved
        return ["meta"] * each, "gloo"
    gpus, local = torch.cuda.device_count(), environment.local_count()
    first = environment.local_rank() * each
    enough = gpus >= local * each or (mixed and gpus == local == 1)
    if gpus and not enough and wanted != "cpu" and environment.shares_gpus():
        torch.cuda.set_device(first % gpus)
        return [f"cuda:{(first + i) % gpus}" for i in range(each)], "gloo"
    if wanted == "cuda" and not enough:
        found = "none" if gpus == 0 else f"only {gpus}"
        share = "a GPU each" if each == 1 else f"{each} GPUs each"
        raise ConfigError(
            f"--device cuda: {local} rank(s) on this host need {share}, and "
            f"torch {torch.__version__} finds {found}. Use --device cpu, or start fewer ranks."
        )
    if wanted == "cpu" or not enough:
        return ["cpu"] * each, "gloo"
    torch.cuda.set_device(first)
    return [f"cuda:{n}" if n < gpus else "cpu" for n in range(first, first + each)], "nccl"


def use_cores(device: str, cores_per_rank: int) -> None:
    """Keep a CPU rank to its cores, as many alone as among many ranks.

    A rank on a GPU may run on any core: NCCL, autograd and data loading have threads of their own.
    """
    torch.set_num_threads(cores_per_rank)
    os.environ["OMP_NUM_THREADS"] = str(cores_per_rank)  # what Accelerate would set them by
    if device == "cpu" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, environment.own_cores(cores_per_rank))
