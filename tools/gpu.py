"""python tools/gpu.py [--rehearse] FOLDER PART

Ask one real GPU what this course says of GPUs, and write what it answers to FOLDER/PART.json. The
parts are those of PARTS below, minutes each on an H100; `make gpu-record` asks one after another. A
copy of the project will do: torch (2.11 or later) and numpy, no Jupyter, no install, no .git.

What fails is recorded with its error, and the rest goes on; a part that is ended before (`timeout
540 python tools/gpu.py ...`) keeps what it has measured. Exit code 0 if all of it is ok, else 1.
`--rehearse` takes the same way on the CPU with miniature sizes. To make a record of the course,
write to logs/reference/MACHINE-gpu_record; lessons read it by bootcamp/experiments/replay.py.
"""

# ruff: noqa: E402  (the course need not be installed: the lines before find it)
import argparse
import gc
import importlib.util
import itertools
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
try:
    importlib.import_module("psutil")
except ImportError:  # only the launcher needs it, which starts nothing here
    sys.modules["psutil"] = types.SimpleNamespace(Error=OSError)

import torch
import torch._dynamo  # here once, and not in each fork
from torch import nn
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.utils.benchmark import Timer
from torch.utils.checkpoint import checkpoint as recomputed

from bootcamp import machine, paths
from bootcamp.costs import hardware
from bootcamp.costs.model_shapes import GPT, GPT2_VOCABULARY, VOCABULARY, Model
from bootcamp.experiments import equality, replay
from bootcamp.files import write_json
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies
from bootcamp.train import memory_usage, models, process_end
from bootcamp.train.step_clock import Clock

MINIATURE = {"layers": 1, "width": 32, "heads": 2, "context": 32}


class Part:
    """The record of one part: FOLDER/NAME.json, written after each measurement."""

    def __init__(self, name: str, folder: Path, rehearsal: bool):
        self.path, self.kind = folder / f"{name}.json", "cpu" if rehearsal else "cuda"
        self.content = {"part": name, "rehearsal": rehearsal, "status": "not finished"}
        self.content |= {"found": {}, "errors": {}}

    def choose(self, real, rehearsed):
        """Choose a size: that of the GPU, or in a rehearsal the small one."""
        return real if self.kind == "cuda" else rehearsed

    def write(self) -> None:
        write_json(self.path, json.loads(replay.hide_own_folders(json.dumps(self.content))))

    def measure(self, name: str, function: Callable[[], object], table: str | None = None):
        """Record under its name what a function returns, or as a row of a table; or its error."""
        began, found, said = time.monotonic(), self.content["found"], "ok"
        try:
            result = function()
            found |= {table: [*found.get(table, []), result]} if table else {name: result}
        except Exception as error:
            said, text = f"{type(error).__name__}: {error}", traceback.format_exc()[-4000:]
            self.content["errors"][name] = {"error": said, "text": text}
        self.write()
        free_memory()
        seconds = time.monotonic() - began
        print(f"  {name}: {said.splitlines()[0][:200]} ({seconds:.1f} s)", flush=True)


# Equality: what is proved on CPU ranks everywhere else

MODELS = ("gpt", "moe", "mlp", "striped-lstm", "resnet50")
FLOAT64 = {"model": "resnet50", "dtype": "float64"}  # float32 repeats no other order of its sums
OF_SCRIPT = {
    "compile": {"backend": "aot_eager"},
    "ddp_in_practice": {"clip": 1e9},  # the baseline clips nothing
    "fsdp_in_practice": {"clip": 1e9},
    "local_sgd": {"average_every": 1},
    "ddp_sync_batchnorm": FLOAT64,
    "striped": {"model": "striped-lstm"},
    "ep": {"model": "moe"},
}
# scripts whose collectives gloo has for CUDA tensors, which it sends from no rank to another
SHARED = {"ddp": 2, "ddp_by_hand": 3, "fsdp": 2, "tp": 2, "hsdp": 4}


def prove_equality(part: Part) -> None:
    """Train every model, and by every script: as one rank, and as ranks that share the GPU."""
    asked = [
        ("gpu", 1, {"model": model, "optimizer": optimizer})
        for model in part.choose(MODELS, ["mlp"])
        for optimizer in part.choose(equality.PROVEN_WITH, ["sgd"])
    ]
    for name, script in strategies.SCRIPTS.items():
        there = script.framework is None or importlib.util.find_spec(script.framework)
        left_out = script.cpu_only or name == "horovod" or name != part.choose(name, "ddp")
        if there and not left_out:
            flags = part.choose({}, {"model": "mlp"}) | {"optimizer": "sgd"}
            asked += [(name, ranks, flags) for ranks in sorted({1, SHARED.get(name, 1)})]
    for name, ranks, flags in asked:
        prove = partial(compare, part.kind, name, ranks, flags)
        part.measure(", ".join([name, f"{ranks} ranks", *flags.values()]), prove, "equality")


def compare(kind: str, script, ranks: int, flags: dict) -> dict:
    """Train with a script and with the CPU baseline. Raises NotTheSame where equality is due."""
    settings = {"steps": 4, "global_batch": 12, **flags, **OF_SCRIPT.get(script, {})}
    settings |= FLOAT64 if settings.get("model") == "resnet50" else {}
    device = {} if strategies.describe(script).own_device else {"device": kind}
    run = train(script, ranks, settings | device)
    shared = {name: value for name, value in settings.items() if name in equality.SAME_SETTINGS}
    proof = equality.compare(run, train("cpu", 1, shared))
    if script != "amp":  # which is near float32, and not equal by intent
        proof.check()
    found = {each["compared"]: each["measured"] for each in proof.rows}
    where = {name: run.config[name] for name in ("device", "backend")}
    return {"script": str(script), "ranks": ranks, **flags, **where, "proof": found}


def train(script, ranks: int, settings: dict) -> Run:
    """Run a script, each rank in a fork of this process; its record. Raises a rank's exception."""
    words = [Path(script).stem, str(ranks), *map(str, settings.values())]
    folder = paths.LOGS / "-".join(words)
    if not folder.exists():
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        arguments = [str(strategies.find(script)), *flags, f"--run-dir={folder}"]
        given = (ranks, get_free_port(), arguments)
        torch.multiprocessing.start_processes(be_rank, given, ranks, start_method="fork")
    return Run(folder)


def be_rank(rank: int, ranks: int, port: int, arguments: list[str]) -> None:
    """Run a script as its own program, in this process."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "BOOTCAMP_SHARE_GPUS": 1}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = arguments
    _kept = runpy.run_path(arguments[0], run_name="__main__")
    os._exit(0)  # with its process group, which can hang when it is freed: train/process_end.py


# Speed: loops that are timed

WAYS = {
    "float32": {},
    "TF32": {"arithmetic": "tf32"},
    "bf16 autocast": {"arithmetic": "bfloat16"},
    "fp16 and scaler": {"arithmetic": "float16"},
    "bf16, fused optimizer": {"arithmetic": "bfloat16", "fused": True},
    "bf16, activation checkpointing": {"arithmetic": "bfloat16", "checkpointed": True},
    "bf16, compile": {"arithmetic": "bfloat16", "compiled": True},
    "bf16, compile, fused optimizer": {"arithmetic": "bfloat16", "compiled": True, "fused": True},
}
FAST, FUSED = WAYS["bf16, compile, fused optimizer"], WAYS["bf16, fused optimizer"]


class CourseGPT(nn.Module):
    """(batch, context + 1) int64 -> the mean loss of each next token, by the course's GPT.

    With another vocabulary than bytes its embedding and head share one matrix, as in GPT-2.
    """

    def __init__(self, shape: dict[str, int], vocabulary: int = VOCABULARY):
        super().__init__()
        self.stages = nn.Sequential(*(stage() for _, stage in models.gpt.stages(**shape)))
        if vocabulary != VOCABULARY:
            table = self.stages[0].byte = nn.Embedding(vocabulary, shape["width"])
            nn.init.normal_(table.weight, std=models.gpt.initial_std(shape["width"]))
            self.stages[-1].scores.weight = table.weight

    def forward(self, ids):
        return models.loss(self.stages(ids[:, :-1]), ids[:, 1:])


class NanoGPT(nn.Module):
    """(batch, context + 1) int64 -> the mean loss, by GPT-2 as published: the yardstick."""

    def __init__(self, shape: dict[str, int], vocabulary: int):
        super().__init__()
        width, context = shape["width"], shape["context"]
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        own = {"activation": "gelu", "batch_first": True, "norm_first": True, "dropout": 0.0}
        block = nn.TransformerEncoderLayer(width, shape["heads"], 4 * width, **own)
        self.blocks = nn.TransformerEncoder(block, shape["layers"], nn.LayerNorm(width), False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(context)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids[:, :-1]) + self.places.weight
        hidden = self.blocks(x, self.mask, is_causal=True)  # the kernel needs no mask then
        scores = nn.functional.linear(hidden, self.tokens.weight)
        return nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


class Trainer:
    """A model with its optimizer and batches, which come in turn; `step()` is the loop's body.

    micro: samples of one forward and backward, whose gradients are added up (default: all).
    arithmetic: of matrix products: float32, tf32, bfloat16 or float16.
    """

    def __init__(self, kind: str, make: Callable, shape: dict, batch: int, micro: int = 0, **way):
        self.kind, self.shape, self.batch, self.micro = kind, shape, batch, micro or batch
        self.arithmetic = arithmetic = way.get("arithmetic", "float32")
        self.compiled = way.get("compiled", False)
        torch.set_float32_matmul_precision("high" if arithmetic == "tf32" else "highest")
        torch.manual_seed(0)
        with torch.device(kind):  # drawn there: on one core it would take seconds
            self.model = make(shape)
        for block in self.model.stages[1:-1] if way.get("checkpointed") else ():
            block.forward = partial(recomputed, block.forward, use_reentrant=False)
        torch._dynamo.reset()  # what an earlier loop has compiled would keep its memory
        backend = "inductor" if kind == "cuda" else "eager"  # which writes no code, and takes none
        compiled = torch.compile(self.model, backend=backend, dynamic=False)
        self.loss_of, self.loss = compiled if self.compiled else self.model, torch.zeros(())
        half = arithmetic if "16" in arithmetic else "bfloat16"
        self.autocast = torch.autocast(kind, getattr(torch, half), enabled="16" in arithmetic)
        self.scaler = torch.amp.GradScaler(kind, enabled=arithmetic == "float16")
        fused = way.get("fused") or None  # None leaves the choice to torch
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        drawn = [torch.randint(VOCABULARY, (batch, shape["context"] + 1)) for _ in range(4)]
        self.batches = itertools.cycle(ids.pin_memory() if kind == "cuda" else ids for ids in drawn)

    def step(self) -> None:
        ids = next(self.batches).to(self.kind, non_blocking=True)
        self.optimizer.zero_grad()
        for part in ids.split(self.micro):
            with self.autocast:
                loss = self.loss_of(part)
            self.scaler.scale(loss * len(part) / self.batch).backward()
            self.loss = loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def speed(self, steps: int, vocabulary: int = VOCABULARY) -> dict:
        """Time so many steps after others, one behind another and waited for at the end."""
        for _ in range(3):
            self.step()
        seconds = Timer("step()", globals={"step": self.step}).timeit(steps).mean
        tokens = self.batch * self.shape["context"] / seconds
        achieved = tokens * Model(*self.shape.values(), vocabulary).flops_of_token()
        peak = published_peak(self.kind, self.arithmetic)
        return {
            "batch": self.batch,
            "seconds_per_step": seconds,
            "tokens_per_second": tokens,
            "achieved_flops_per_second": achieved,
            "mfu": achieved / peak if peak else None,
            "loss": float(self.loss),
            "peak_bytes": memory_usage.read_peak_bytes(torch.device(self.kind)),
        }

    def memory(self) -> dict:
        """Count bytes by kind in one more step; activations inside of compiled code are not."""
        counted = memory_usage.ModelMemory(self.model, self.optimizer).count()
        if self.compiled:
            return counted | {"activation_bytes": None}
        watched = memory_usage.Activations(self.model)
        watched.start()
        self.step()
        watched.stop()
        return counted | {"activation_bytes": watched.bytes}


def free_memory() -> None:
    """Give back to the GPU what nobody refers to, and count its peak anew."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def published_peak(kind: str, arithmetic: str) -> float | None:
    """Find the FLOP/s of the GPU's data sheet, without sparsity; None if it is unknown."""
    try:
        gpu = hardware.gpu(torch.cuda.get_device_name(0) if kind == "cuda" else "")
    except ValueError:
        return None
    return {"float32": gpu.peak_fp32, "tf32": gpu.peak / 2}.get(arithmetic, gpu.peak) or None


def measure_speed_small(part: Part) -> None:
    """GPT-2 small in every number format; batches up to the end of memory; a step's clocks."""
    shape, batch = part.choose((GPT["small"], 16), (MINIATURE, 2))

    def try_way(way: str) -> dict:
        trainer = Trainer(part.kind, CourseGPT, shape, batch, **WAYS[way])
        return {"way": way, **trainer.speed(part.choose(15, 2)), **trainer.memory()}

    for way in WAYS:
        part.measure(way, partial(try_way, way), "ways")
    part.measure("batches", partial(fill_memory, part, shape))
    part.measure("asynchronous", partial(read_clocks, part, shape, batch))


def fill_memory(part: Part, shape: dict) -> dict:
    """Double the batch until the memory is used up."""
    rows, ended = [], None
    for batch in part.choose((4 << i for i in itertools.count()), [2, 4, 1 << 44]):
        free_memory()
        try:
            rows.append(Trainer(part.kind, CourseGPT, shape, batch, **FUSED).speed(3))
        except Exception as error:
            if process_end.classify_exception(error) != "oom":
                raise
            ended = {"batch": batch, "error": f"{type(error).__name__}: {error}"}
            break
    return {"rows": rows, "out of memory": ended}


def read_clocks(part: Part, shape: dict, batch: int) -> dict:
    """Read the CPU's clock and the GPU's own around a step: when the calls return, and waited."""
    trainer = Trainer(part.kind, CourseGPT, shape, batch, **FUSED)
    trainer.speed(1)
    events, wall, found = Clock(torch.device(part.kind)), Clock(torch.device("cpu")), {}
    wait = part.choose(torch.cuda.synchronize, lambda: None)
    for name in ("returned", "synchronised"):
        wait()
        wall.begin()
        events.begin()
        trainer.step()
        event = events.end()
        if name == "synchronised":
            wait()
        found[f"{name}_seconds"] = wall.end().get()
        found[f"event_seconds, {name}"] = event.get()
    return found


def measure_mfu(part: Part, size: str, micro: int) -> None:
    """GPT-2 by the course's model and by one like nanoGPT's: 64 samples of 1024 tokens a step.

    As in nanoGPT the vocabulary is padded to whole tiles; what is added does not count as work.
    """
    shape, batch, vocabulary = part.choose((GPT[size], 64, 50304), (MINIATURE, 4, 320))

    def time_steps(model: Callable) -> dict:
        make = partial(model, vocabulary=vocabulary)
        trainer = Trainer(part.kind, make, shape, batch, part.choose(micro, 2), **FAST)
        found = trainer.speed(part.choose(12, 1), GPT2_VOCABULARY)
        return found | {"micro_batch": trainer.micro}

    part.measure("nanoGPT-like", partial(time_steps, NanoGPT))
    part.measure("course", partial(time_steps, CourseGPT))


PARTS = {
    "equality": prove_equality,
    "speed_small": measure_speed_small,
    "mfu_small": partial(measure_mfu, size="small", micro=32),
    "mfu_xl": partial(measure_mfu, size="xl", micro=8),
}


def main() -> int:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("part", metavar="PART", choices=PARTS, help=", ".join(PARTS))
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, miniature sizes")
    args = parser.parse_args()
    # by nvidia-smi: whoever has begun CUDA can fork no ranks that use it
    names = [machine.cpu_name()] if args.rehearse else machine.gpu_names()
    if not names:
        print("There is no GPU here that nvidia-smi lists: nothing was recorded. Say --rehearse.")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # temporary files go
    args.folder.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # free_memory() need not look at what imports have made
    part = Part(args.part, args.folder.resolve(), args.rehearse)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    about = {"gpu": {"name": names[0]}, "versions": versions, "machine": machine.describe()}
    part.content["about"] = about | {"unix_seconds": time.time()}
    with tempfile.TemporaryDirectory(prefix="gpu-record-", ignore_cleanup_errors=True) as own:
        paths.LOGS, os.environ["TORCHINDUCTOR_CACHE_DIR"] = Path(own), f"{own}/inductor"
        PARTS[args.part](part)
    part.content["status"] = "failed" if part.content["errors"] else "ok"
    part.write()
    print(args.part, part.content["status"])
    return int(part.content["status"] != "ok")


if __name__ == "__main__":
    sys.exit(main())
