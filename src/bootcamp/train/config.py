"""Configure a run before any training: its flags, what follows from them, its `config.json`."""

import argparse
import datetime
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from bootcamp import corpus, machine
from bootcamp.paths import LOGS, PACKAGE, ROOT
from bootcamp.records import summary
from bootcamp.records.heartbeat import Heartbeat
from bootcamp.train import data, environment, models, process_end
from bootcamp.train.process_end import refuse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TIMEOUT_SECONDS = 120.0
LONGEST_TIMEOUT_SECONDS = 7 * 24 * 3600  # a week: torch, NCCL, gloo and DeepSpeed all accept it
LEARNING_RATES = {"adamw": 1e-3, "adam": 1e-3, "sgd": 0.05}
MODEL_PARALLEL_AXES = ("pipeline", "tensor", "context")  # their ranks train on the same samples


@dataclass
class RunContext:
    """A rank's flags and what was derived from them."""

    args: argparse.Namespace
    devices: list[str]  # of this rank, such as ["cuda:1"]
    backend: str  # of the process group
    run_dir: Path  # absolute
    mesh: tuple[int, ...]  # its sizes, as of a DeviceMesh
    own_flags: list[str]  # names of the flags that only this script has
    axes: tuple[str, ...] = ("data",)  # names of the mesh's dimensions
    timeout: datetime.timedelta = datetime.timedelta(seconds=TIMEOUT_SECONDS)  # of a collective
    first_step: int = 0  # set by checkpoint.load: the one after those that it resumed
    heartbeat: Heartbeat | None = None  # of record.Run
    write_steps: Callable[[], None] | None = None  # of record.Run: the rows of all finished steps

    @property
    def device(self) -> str:
        return self.devices[0]

    @property
    def data_parallel(self) -> int:
        """Number of parts that a global batch is divided into."""
        sizes = zip(self.axes, self.mesh, strict=True)
        return math.prod(size for axis, size in sizes if axis not in MODEL_PARALLEL_AXES)

    def size(self, axis: str) -> int:
        """Number of ranks along an axis of the mesh."""
        return self.mesh[self.axes.index(axis)]


def parse(
    devices: tuple[str, ...] = ("auto", "cpu", "cuda", "meta"),
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

    A flag that can't be met ends the process with exit code 2 and one sentence from rank 0.
    """
    own_flags = own_flags or {}
    parser = _parser(devices)
    if len(mesh) > 1:
        parser.add_argument("--mesh", help=f"ranks along {' x '.join(mesh)}, such as 2x2")
    for flag, settings in own_flags.items():
        parser.add_argument(flag, **settings)
    args = parser.parse_args()
    _check_values(args)
    chosen, backend = _resolve_devices(args.device, devices_per_rank, mixed_devices)
    run_dir, sizes = find_folder(args.run_dir), _size_axes(getattr(args, "mesh", None), mesh)
    names = [flag.strip("-").replace("-", "_") for flag in own_flags]
    timeout = datetime.timedelta(seconds=args.timeout)
    context = RunContext(args, chosen, backend, run_dir, sizes, names, axes=mesh, timeout=timeout)
    _check_batch(context)
    start(context)
    torch.manual_seed(args.seed)
    if environment.rank() == 0:
        _print_devices(context)
    return args, context


def start(context: RunContext) -> None:
    """Begin the run: claim its folder, keep to this rank's cores, report exceptions."""
    if environment.rank() == 0:
        claim_folder(context)
    use_cores(context.device, context.args.cores_per_rank)
    torch.backends.cudnn.allow_tf32 = False  # it is by default: convolutions and LSTMs would round
    process_end.report_exceptions(context.run_dir)


def _print_devices(context: RunContext) -> None:
    """Print the devices of this rank where the flags left them open."""
    devices = context.devices
    if context.device == "cpu" and context.args.device == "auto":
        ranks = environment.local_world_size()
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
    """A parser that lets one rank speak for all."""

    def error(self, message):
        unknown = re.findall(r"--[\w-]+", message) if "unrecognized" in message else []
        flags = self._option_string_actions
        near = [get_close_matches(flag, flags, n=1) for flag in unknown]
        hint = "".join(f" Did you mean {flag}?" for (flag,) in filter(None, near))
        refuse(f"{message[0].upper()}{message[1:]}.{hint} Run with --help to see every flag.")


def _parser(devices: tuple[str, ...]) -> argparse.ArgumentParser:
    about, form = sys.modules["__main__"].__doc__, argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog=Path(sys.argv[0]).name, description=about, formatter_class=form)
    add = parser.add_argument
    add("--model", default="gpt", choices=models.NAMES)
    add("--size", default="tiny", help="the dial for size: tiny, small, medium, large, xl")
    add("--kv-heads", type=int, help="key-value heads (gpt; default: one for each query head)")
    add("--steps", type=int, default=20, help="optimizer steps")
    add("--global-batch", type=int, default=32, help="samples per step, all ranks together")
    add("--optimizer", default="adamw", choices=LEARNING_RATES, help="sgd has momentum 0.9")
    add("--lr", type=float, help="learning rate (default: adamw 1e-3, sgd 0.05)")
    add("--seed", type=int, default=0, help="decides initial parameters and order of the data")
    add("--dtype", default="float32", choices=DTYPES, help="of parameters and arithmetic")
    add("--device", default=devices[0], choices=devices, help="auto: a GPU for each rank, else CPU")
    add("--cores-per-rank", type=int, default=1, help="CPU cores that one rank computes with")
    add("--run-dir", help="a new folder for the record (default: the launcher's, else in logs/)")
    add("--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds to wait in a collective")
    add("--save", help="place of a checkpoint: model, optimizer and step")
    add("--save-async", action="store_true", help="write it while training goes on")
    add("--save-every", type=int, default=10, help="steps between two checkpoints")
    add("--resume", help="a checkpoint to go on from; the one of --save may still be missing")
    add("--trace-step", type=int, help="profile this step into ranks/<k>.trace.json")
    return parser


def _check_values(args: argparse.Namespace) -> None:
    """Refuse values that no machine could meet; fill in the learning rate."""
    sizes = models.FAMILIES[args.model].SIZES
    if args.size not in sizes:
        refuse(
            f"--size {args.size}: {args.model} has no such size. Choose one of {', '.join(sizes)}."
        )
    heads = sizes[args.size].get("heads")
    if args.kv_heads is not None and (heads is None or args.kv_heads < 1 or heads % args.kv_heads):
        given = f"--kv-heads {args.kv_heads}: {heads or 'no'} heads of queries"
        refuse(f"{given}. Give a number that divides gpt's.")
    args.lr = LEARNING_RATES[args.optimizer] if args.lr is None else args.lr
    most = {"timeout": LONGEST_TIMEOUT_SECONDS, "cores_per_rank": len(machine.cores())}
    for name in ("steps", "global_batch", "save_every", "lr", *most):
        value = getattr(args, name)
        if not 0 < value <= most.get(name, sys.float_info.max):
            limit = f", here at most {most[name]}" if name in most else ""
            refuse(f"--{name.replace('_', '-')} {value}: expected a number above 0{limit}.")


def _check_batch(context: RunContext) -> None:
    """Refuse a global batch that the data or the ranks don't allow."""
    args, shares = context.args, context.data_parallel
    if args.global_batch > (samples := len(data.dataset(args))):
        refuse(f"--global-batch {args.global_batch}: the data has {samples} samples. Give fewer.")
    if args.global_batch % shares:
        below = args.global_batch - args.global_batch % shares
        nearest = f"{below} or {below + shares}" if below else f"{shares}"
        every = "ranks: every rank" if shares == environment.world_size() else "models: each"
        why = f"needs the same number of samples. Give a multiple of {shares}, such as {nearest}."
        refuse(f"--global-batch {args.global_batch} does not divide over {shares} {every} {why}")


def _size_axes(given: str | None, axes: tuple[str, ...]) -> tuple[int, ...]:
    """Size each axis: as given, else 2 ranks along each but the first, from the last on."""
    world = environment.world_size()
    given, which = given and given.lower(), f"--mesh {given}"
    if given is None:
        which = f"{world} ranks need --mesh"
        mesh, left = [], world
        for _ in axes[1:]:
            mesh.insert(0, min(2, left))
            left //= mesh[0]
        mesh.insert(0, left)
    elif re.fullmatch(rf"[1-9]\d*(x[1-9]\d*){{{len(axes) - 1}}}", given, re.ASCII):
        mesh = [int(size) for size in given.split("x")]
    else:
        refuse(f"--mesh {given}: expected {len(axes)} numbers, {' x '.join(axes)}, such as 2x2.")
    if math.prod(mesh) != world:
        refuse(
            f"{which}: {' x '.join(axes)} is {' x '.join(map(str, mesh))} = {math.prod(mesh)} "
            f"ranks, and {world} were started. Give sizes that multiply to {world}, "
            f"such as {world}{'x1' * (len(axes) - 1)}."
        )
    return tuple(mesh)


def _resolve_devices(wanted: str, each: int, mixed: bool = False) -> tuple[list[str], str]:
    """Choose the devices of this rank and the backend of its process group."""
    if wanted == "meta":  # a rehearsal: shapes without numbers, to see that every tensor is moved
        return ["meta"] * each, "gloo"
    gpus, local = torch.cuda.device_count(), environment.local_world_size()
    first = environment.local_rank() * each
    enough = gpus >= local * each or (mixed and gpus == local == 1)
    may_share = os.environ.get("BOOTCAMP_SHARE_GPUS") == "1"  # over gloo: NCCL refuses
    if gpus and not enough and wanted != "cpu" and may_share:
        torch.cuda.set_device(first % gpus)
        return [f"cuda:{(first + i) % gpus}" for i in range(each)], "gloo"
    if wanted == "cuda" and not enough:
        found = "none" if gpus == 0 else f"only {gpus}"
        share = "a GPU each" if each == 1 else f"{each} GPUs each"
        refuse(
            f"--device cuda: {local} rank(s) on this host need {share}, and "
            f"torch {torch.__version__} finds {found}. Use --device cpu, or start fewer ranks."
        )
    if wanted == "cpu" or not enough:
        return ["cpu"] * each, "gloo"
    torch.cuda.set_device(first)
    return [f"cuda:{n}" if n < gpus else "cpu" for n in range(first, first + each)], "nccl"


def use_cores(device: str, cores_per_rank: int) -> None:
    """Keep a CPU rank to its cores, as many alone as among many; ranks beyond them take turns.

    A rank on a GPU may run on any core: NCCL, autograd and data loading have threads of their own.
    BOOTCAMP_FIRST_CORE moves all ranks, so that two launches at once need not meet on one core.
    """
    torch.set_num_threads(cores_per_rank)
    os.environ["OMP_NUM_THREADS"] = str(cores_per_rank)  # what Accelerate would set them by
    if device == "cpu" and hasattr(os, "sched_setaffinity"):
        cores = machine.cores()  # which simulated hosts share
        rank = environment.rank() if environment.link_rate() else environment.local_rank()
        first = (int(os.environ.get("BOOTCAMP_FIRST_CORE", 0)) + rank) * cores_per_rank
        own = {cores[(first + i) % len(cores)] for i in range(cores_per_rank)}
        os.sched_setaffinity(0, own)


def find_folder(given: str | None) -> Path:
    """Find the folder as given, else the launcher's, else a new one: the same on every rank."""
    if named := given or os.environ.get("BOOTCAMP_RUN"):
        return Path(named).resolve()
    if environment.world_size() == 1:
        return LOGS / time.strftime(f"%Y%m%d-%H%M%S-{_strategy()}-{os.getpid()}")
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return LOGS / f"{_strategy()}-{run_id if run_id != 'none' else os.getppid()}"


def claim_folder(context: RunContext) -> None:
    """Create the run folder and its `config.json`, on rank 0; a restart or `--resume` reuses it."""
    folder = context.run_dir
    launched = os.environ.get("BOOTCAMP_RUN") == str(folder)  # our launcher has made it
    resumes = context.args.resume and (folder / "config.json").exists()
    goes_on = environment.attempt() > 0 or resumes
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not goes_on and not launched and any(folder.iterdir()):
            refuse(f"--run-dir {folder} is not empty, it may hold another run. Give a new folder.")
        (folder / "ranks").mkdir(exist_ok=True)
        if not (folder / "summary.json").exists() or goes_on:
            summary.reserve(folder)  # a run that goes on begins without its last attempt's verdict
        summary.write_json(folder / "config.json", _configuration(context))
    except OSError as error:
        refuse(f"--run-dir {folder} can't be written: {error.strerror}. Give another folder.")


def _configuration(context: RunContext) -> dict:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    flags = vars(context.args).items()
    path = Path(sys.argv[0]).resolve()  # in the record without this machine's own folders
    script = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    start = ["python"]
    if environment.world_size() > 1:
        start = ["torchrun", "--nproc-per-node", str(environment.local_world_size())]
    by_hand = shlex.join([*start, script, *sys.argv[1:]])
    return {
        **{name: value for name, value in flags if isinstance(value, int | float | str | None)},
        "run_dir": None,  # a run is found by its folder, which may be moved
        "device": context.device,
        "devices": context.devices,
        "backend": context.backend,
        "timeout": context.timeout.total_seconds(),
        "mesh": dict(zip(context.axes, context.mesh, strict=True)),
        "data_parallel": context.data_parallel,
        "own_flags": context.own_flags,
        "corpus_crc32": corpus.CRC32,
        "strategy": _strategy(),
        "script": script,
        "command": os.environ.get("BOOTCAMP_COMMAND", by_hand),
        "started_unix_seconds": time.time(),
        "processes": environment.world_size(),
        "hosts": max(1, environment.world_size() // environment.local_world_size()),
        "link": environment.link_rate(),
        "machine": machine.describe(gpus),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "git_commit": _read_git_commit(),
    }


def _read_git_commit() -> str | None:
    command = ["git", "-C", str(PACKAGE), "rev-parse", "--verify", "-q", "HEAD"]
    try:  # a git on a slow disk must not delay the training
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _strategy() -> str:
    return Path(sys.argv[0]).stem.removeprefix("_train_")
