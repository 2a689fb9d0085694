"""The record that a rank leaves of its run, in `logs/<run>/`.

- `config.json`, at the start: the resolved flags, command, versions, machine, git commit.
- `steps.jsonl`, from rank 0: one flat object per step.
- `ranks/<k>.json`, at the end: bytes by kind, the ids of the samples, the parameters' fingerprint.
- `ranks/<k>.trace.json`, if asked for: one step as torch.profiler saw it.
- `summary.json`: how it ended and what it came to.
"""

import atexit
import contextlib
import json
import os
import platform
import shlex
import socket
import struct
import subprocess
import sys
import time
import traceback
import zlib
from pathlib import Path

import torch

from bootcamp import machine
from bootcamp.launcher import simulated_hosts
from bootcamp.paths import ROOT
from bootcamp.records import heartbeat, summary
from bootcamp.records import trace as timeline
from bootcamp.train import activations, data, dtensor_layout, environment, memory_usage, models

PROJECTIONS = 8
CHUNK = 1 << 20


class FolderError(Exception):
    """A run folder that cannot be used. Its text says why and what to do."""


def claim(args) -> None:
    """Create the run folder and write `config.json` into it. Rank 0 alone does so.

    A restart, and a run with `--resume`, go on in the folder of the run that they continue.
    Raises FolderError if the folder holds another run or anything else, or can't be written.
    """
    folder = args.run_dir
    launched = os.environ.get("BOOTCAMP_RUN") == str(folder)  # by our launcher, which made it
    try:
        folder.mkdir(parents=True, exist_ok=True)
        goes_on = environment.attempt() > 0 or (args.resume and (folder / "config.json").exists())
        if not goes_on and not launched and any(folder.iterdir()):
            raise FolderError(
                f"--run-dir {folder} is not empty, it may hold another run. "
                "Give a new folder, or delete that one."
            )
        (folder / "ranks").mkdir(exist_ok=True)
        if not (folder / "summary.json").exists() or goes_on:
            summary.reserve(folder)  # a run that goes on begins without its last attempt's verdict
        args.corpus_crc32 = data.corpus_crc32()
        summary.write_json(folder / "config.json", _configuration(args))
    except OSError as error:
        raise FolderError(
            f"--run-dir {folder} can't be written: {error.strerror}. "
            "Give a folder that you may write to, on a disk that is not full."
        ) from None


def _configuration(args) -> dict:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    flags = {
        name: value
        for name, value in vars(args).items()
        if isinstance(value, int | float | str | None)
    }
    return {
        **flags,
        "timeout": args.timeout.total_seconds(),
        "own_flags": args.own_flags,
        "devices": args.devices,
        "mesh": dict(zip(args.axes, args.mesh, strict=True)),
        "strategy": Path(sys.argv[0]).stem.removeprefix("_train_"),
        "script": _in_project(Path(sys.argv[0]).resolve()),
        "command": os.environ.get("BOOTCAMP_COMMAND", _command_by_hand()),
        "started_unix_seconds": time.time(),
        "processes": environment.count(),
        "hosts": environment.hosts(),
        "link": environment.link(),
        "machine": machine.describe(gpus),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "git_commit": _git_commit(),
    }


def _command_by_hand() -> str:
    """The line that started this script in a terminal, as far as it can be told from here."""
    start = ["python"]
    if environment.count() > 1:
        start = ["torchrun", "--nproc-per-node", str(environment.local_count())]
    return shlex.join([*start, _in_project(Path(sys.argv[0]).resolve()), *sys.argv[1:]])


def _in_project(path: Path) -> str:
    """A path without this machine's own folders: from the project's, or the bare name."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", "-q", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


class Run:
    """Takes down one rank's training: `step` after every step, `finish` after the last.

    model, optimizer: what is trained; read for bytes and for the fingerprint, never changed.
    batches: the data.Batches that the script draws from; read for the ids of the samples.
    world: the number of ranks as the script's framework reports it.
    """

    def __init__(self, args, model, optimizer, batches, world: int):
        self.args, self.model, self.optimizer = args, model, optimizer
        self.batches, self.world = batches, world
        self.rank = environment.rank()
        self.folder = args.run_dir
        self.device = torch.device(args.device)
        self.tokens = models.tokens_per_sample(args)
        self.sample_ids, self.steps_done, self.trace = [], 0, None
        self.first_step = args.first_step
        self.heartbeat = heartbeat.Heartbeat(self.folder, self.rank)
        args.beat = self._beat  # for whoever works between two steps
        self._steps = None
        self._sent_before, self._sent_after, self._sent_steps = {}, {}, 0
        # a pipeline's first step also runs the stages to learn their shapes: watch its second
        self._watched = min(int("pipeline" in args.axes), args.steps - args.first_step - 1)
        if self.rank == 0:
            self._steps = open(self.folder / "steps.jsonl", "a")  # noqa: SIM115
        self._held = memory_usage.by(model, optimizer)
        self.initial_fingerprint = fingerprint(model, self._beat)
        self._activations = activations.Activations(model)
        self._begin_step()

    def step(self, step: int, loss: torch.Tensor) -> None:
        """Take down one step. loss: the mean over the global batch, on any device, shape ()."""
        loss = None if loss.is_meta else loss.item()  # waits for the device, so the time is whole
        seconds = time.perf_counter() - self._began
        if self.steps_done == self._watched:
            self._activations.stop()
        if self.steps_done == 0:
            self._sent_before = sent_bytes()
        if step == self.args.steps - 2:  # in the last one a neighbour may leave before we count
            self._sent_after, self._sent_steps = sent_bytes(), self.steps_done
        if self.trace:
            self._end_trace()
        self.sample_ids.append(self.batches.sample_ids)
        self.steps_done += 1
        if self._steps:
            row = {
                "step": step,
                "attempt": environment.attempt(),
                "loss": loss,
                "seconds": seconds,
                "samples": self.args.global_batch,
                "tokens": self.args.global_batch * self.tokens,
            }
            self._steps.write(json.dumps(row) + "\n")
            self._steps.flush()
        self._beat()
        self._begin_step()

    def _beat(self) -> None:
        self.heartbeat.beat(self.steps_done)

    def finish(self) -> None:
        """Write the rank's record and, on rank 0, the summary.

        From here on the process leaves by os._exit when its script ends: freeing what holds a
        process group can hang (notebook 04 shows it), and nothing is left to be lost.
        """
        record = {
            "rank": self.rank,
            "world_size": self.world,
            "data_share": getattr(self.batches, "rank", self.rank),
            "stages": stages(self.model),
            "first_step": self.first_step,
            "device": str(self.device),
            "parameter_device": next(self.model.parameters()).device.type,
            "activation_devices": sorted(self._activations.devices),
            "parameter_bytes": self._held.parameter_bytes,
            "gradient_bytes": self._held.gradient_bytes,
            "optimizer_bytes": self._held.optimizer_bytes,
            "activation_bytes": self._activations.bytes,
            "peak_bytes": peak_bytes(self.device),
            "sent_bytes_per_step": self._sent_per_step("all"),
            "sent_to_other_hosts_bytes_per_step": self._sent_per_step("other hosts"),
            "host_sent_bytes_per_step": self._sent_per_step(simulated_hosts.INTERFACE),
            "communication_seconds": self._communication_seconds(),
            "fingerprint_initial": self.initial_fingerprint,
            "fingerprint_final": fingerprint(self.model, self._beat),
            "sample_ids": self.sample_ids,
        }
        summary.write_json(self.folder / "ranks" / f"{self.rank}.json", record)
        if self.rank == 0:
            self._write_summary(record)
        atexit.register(_leave)

    def _write_summary(self, record: dict) -> None:
        self._steps.close()
        measures = summary.measures(summary.read_steps(self.folder))
        samples = measures["samples_per_second"]["median"]
        flops = models.flops_per_sample(self.args)
        summary.write(
            self.folder,
            "ok",
            **measures,
            world_size=self.world,
            launcher=environment.launcher(),
            restarts=environment.attempt(),
            peak_bytes=record["peak_bytes"],
            flops_per_sample=flops,
            achieved_flops_per_second=flops and flops * samples,
        )

    def _sent_per_step(self, way: str) -> float | None:
        """Bytes of one kind in `sent_bytes`, per step between the two counts; None without any."""
        if not self._sent_steps or way not in self._sent_before:
            return None
        return (self._sent_after[way] - self._sent_before[way]) / self._sent_steps

    def _begin_step(self) -> None:
        if self.args.trace_step == self.first_step + self.steps_done:
            self._begin_trace()
        if self.steps_done == self._watched:
            self._activations.start()
        self._began = time.perf_counter()

    def _begin_trace(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.trace = torch.profiler.profile(activities=activities)
        self.trace.__enter__()
        self._traced = torch.profiler.record_function("training_step")
        self._traced.__enter__()

    def _end_trace(self) -> None:
        self._traced.__exit__(None, None, None)
        self.trace.__exit__(None, None, None)
        self.trace.export_chrome_trace(str(self._trace_path()))
        self.trace = None

    def _trace_path(self) -> Path:
        return self.folder / "ranks" / f"{self.rank}.trace.json"

    def _communication_seconds(self) -> float | None:
        """Time of the traced step in collectives, waiting included.

        None without a trace, and where torch's profiler sees none: Horovod's are not torch's.
        """
        if not self._trace_path().exists():
            return None
        return timeline.total_seconds(timeline.read(self._trace_path())["communicate"]) or None


def report_exceptions(run_dir: Path) -> None:
    """From now on an exception that ends this script also goes into the summary of its run.

    The first rank that fails has the word: a summary that says failed is left as it is.
    """
    show = sys.excepthook

    def report(kind, error, trace):
        with contextlib.suppress(OSError):
            show(kind, error, trace)  # on a full disk even this can fail
        if summary.read(run_dir)["status"] not in ("running", "ok"):
            return
        summary.write(
            run_dir,
            status_of(error),
            **summary.measures(summary.read_steps(run_dir)),
            error={
                "rank": environment.rank(),
                "message": f"{kind.__name__}: {error}",
                "traceback": "".join(traceback.format_exception(kind, error, trace)),
            },
        )

    sys.excepthook = report


def status_of(error: BaseException) -> str:
    """The status of a run that this exception ended: failed, oom or interrupted."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "oom" if out_of_memory or "DefaultCPUAllocator" in str(error) else "failed"


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if getattr(sys, "last_value", None) else 0)


def fingerprint(model: torch.nn.Module, beat=lambda: None) -> list[float] | None:
    """Eight random projections of all parameters, summed in float64; None on the meta device.

    The eight directions have entries of +1 and -1, one bit each of a random byte per parameter,
    drawn from a generator seeded by the parameter's name: so a model has one fingerprint however it
    is wrapped or cut. The root mean square of two fingerprints' differences estimates the Euclidean
    distance between the parameters (Achlioptas, JCSS 66, 2003). `beat` is called now and then.

    A parameter that is sharded over ranks (a DTensor) is gathered: all of them have to call this.
    Of a pipeline each rank has the fingerprint of its own stages; their sum is the model's.
    """
    total = torch.zeros(PROJECTIONS, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            return None
        name = models.own_name(name)
        parameter = dtensor_layout.whole(parameter)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        for chunk in parameter.detach().flatten().split(CHUNK):
            values = chunk.cpu().double()
            draws = torch.randint(256, (len(values),), dtype=torch.uint8, generator=generator)
            for direction in range(PROJECTIONS):
                signs = (draws >> direction & 1).double().mul_(2).sub_(1)
                total[direction] += signs @ values
            beat()
    return total.tolist()


def stages(model: torch.nn.Module) -> list[str]:
    """The names of the model's stages that this rank holds, such as ["block2", "head"]."""
    names = (models.own_name(name) for name, _ in model.named_parameters())
    return sorted({name.partition(".")[0] for name in names})


def peak_bytes(device: torch.device) -> int:
    """Peak memory of this rank: what torch held on the GPU, or the process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return machine.process_peak_bytes()


def sent_bytes() -> dict[str, int]:
    """Bytes that were sent so far, counted by the kernel (Linux; elsewhere nothing is known).

    "all": by this process's TCP connections, "other hosts": by those of them that lead to another
    address than this host's. Reads `tcpi_bytes_acked` of every connected socket (tcp(7)), so what
    the reader has confirmed, without headers. NCCL's shared memory and NVLink are not in it.
    By the name of the interface: by all processes of this host to others, with headers, if the host
    is one of bootcamp.launcher.simulated_hosts, which has such an interface for itself.
    """
    if platform.system() != "Linux":
        return {}
    total = {"all": 0, "other hosts": 0}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
                sent = struct.unpack_from("Q", info, 120)[0]
                away = connection.getsockname()[0] != connection.getpeername()[0]
        except OSError:
            continue  # closed meanwhile, or no TCP socket
        total["all"] += sent
        total["other hosts"] += sent * away
    if environment.link():
        total[simulated_hosts.INTERFACE] = interface_bytes(simulated_hosts.INTERFACE)
    return total


def interface_bytes(name: str) -> int:
    """Bytes that a network interface of this process's host has sent (proc(5), net/dev)."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counters = dict(line.split(":") for line in lines if ":" in line)
    fields = {interface.strip(): numbers.split() for interface, numbers in counters.items()}
    return int(fields[name][8])
