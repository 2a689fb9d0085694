"""Run folders that tests write themselves, without a launch.

`write_files` writes just the parts of a record that it is given; `write_run` the whole record of a
training whose values the test chooses, which the fixture `make_run` puts into folders of its own.
"""

import json
from pathlib import Path

from bootcamp import machine
from bootcamp.costs import alpha_beta
from bootcamp.experiments import roofline
from bootcamp.records.runs import Run
from bootcamp_lessons import allreduce_sweep

MB = 1_000_000
BYTES = {
    "parameter_bytes": 10 * MB,
    "gradient_bytes": 20 * MB,
    "optimizer_bytes": 30 * MB,
    "activation_bytes": 40 * MB,
}
LOSSES = (4.0, 3.0, 2.5, 2.25, 2.125, 2.0)


def write_files(folder: Path, config=None, summary=None, steps=(), ranks=(), **others) -> Run:
    """Write the files of a record. steps, ranks: a dict each; others: file's stem -> content."""
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    for name, content in {"config": config, "summary": summary, **others}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    if steps:
        (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    for rank in ranks:
        (folder / "ranks" / f"{rank['rank']}.json").write_text(json.dumps(rank))
    return Run(folder)


def write_run(
    folder: Path,
    strategy="ddp",
    ranks=2,
    speed=100.0,
    batch=32,
    losses=LOSSES,
    status="ok",
    device="cpu",
    cpu=None,
    cores=8,
    shared=False,
    sizes=BYTES,
    sent=5 * MB,
    flops=1e9,
    traced=(),
    trace=None,
    steps=None,
    **settings,
) -> Run:
    """Write the whole record of a training, on this machine's processor unless `cpu` is given.

    speed: samples per second, of every step or a list of each step's; traced: the ranks that leave
    a trace, which is `trace` or a step of 10 ms; steps: rows in place of those of speed and losses.
    """
    speeds = speed if isinstance(speed, list) else [speed] * len(losses)
    rows = [
        {"step": k, "loss": loss, "seconds": batch / s, "samples": batch, "tokens": 64 * batch}
        for k, (loss, s) in enumerate(zip(losses, speeds, strict=True))
    ]
    config = {
        "strategy": strategy,
        "device": "cuda:0" if device == "cuda" else device,
        "processes": ranks,
        "global_batch": batch,
        "model": "gpt",
        "size": "tiny",
        "dtype": "float32",
        **describe_hardware(cpu, cores, ranks if device == "cuda" else 0),
        **settings,
    }
    own = [
        {"rank": rank, "sent_bytes_per_step": sent, "peak_bytes": 4321 * MB, **sizes}
        for rank in range(ranks)
    ]
    summary = {"status": status, "flops_per_sample": flops, "shared_cores": shared}
    run = write_files(folder, config, summary, rows if steps is None else steps, own)
    for rank in traced:
        path = folder / "ranks" / f"{rank}.trace.json"
        path.write_text(json.dumps(trace or make_trace(*STEP_OF_10_MS)))
    return run


def describe_hardware(cpu: str | None = None, cores: int = 8, gpus: int = 0) -> dict:
    """Where a run or a measurement was made, as its config has it; cpu None is this machine's."""
    names = [f"NVIDIA H100 {number}" for number in range(gpus)]
    host = {"cpu": cpu or machine.cpu_name(), "cores": cores, "gpus": names}
    return {"cores_per_rank": 1, "machine": host, "versions": {"torch": "2.99.0"}}


# Computes from 1 to 5 and from 6 to 8, communicates from 4 to 7: 2 ms of both at once.
STEP_OF_10_MS = (
    ("training_step", "user_annotation", 0, 10),
    ("aten::mm", "cpu_op", 1, 4),
    ("aten::add", "cpu_op", 6, 2),
    ("gloo:all_reduce", "user_annotation", 4, 3),
)


def make_trace(*spans: tuple, begins: float = 5e3, thread: int = 1) -> dict:
    """A trace as torch's profiler writes it, of (name, category, start, length) in milliseconds."""
    return {
        "traceEvents": [
            {"ph": "X", "name": name, "cat": category, "tid": thread}
            | {"ts": 1e3 * (begins + start), "dur": 1e3 * length}
            for name, category, start, length in spans
        ]
    }


SIZES = [4 * 2**power for power in range(24)]  # of a sweep, which a line is fitted to
HELD_OUT = [12 * 4**power for power in range(11)]


def make_sweep_rows(cost, ranks: int = 2) -> list[dict]:
    """The rows of a sweep of all-reduces, whose calls take cost(bytes) seconds."""
    return [
        {
            "bytes": size,
            "seconds": cost(size),
            "median_seconds": 3 * cost(size),
            **alpha_beta.bandwidths(size, cost(size), ranks),
            "held_out": size in HELD_OUT,
        }
        for size in sorted(SIZES + HELD_OUT)
    ]


def write_sweep(
    folder: Path, cost, ranks=2, backend="gloo", cpu=None, shared=False, rounds=12
) -> allreduce_sweep.Sweep:
    """Write a sweep of all-reduces on a machine with two cores, or with a GPU for each rank."""
    on_gpus = backend == "nccl"
    where = describe_hardware(cpu, 2, ranks if on_gpus else 0)
    config = {"device": "cuda:0" if on_gpus else "cpu", "processes": ranks, **where}
    swept = {"backend": backend, "world_size": ranks, "machine": where["machine"]}
    swept |= {"rounds": rounds, "rows": make_sweep_rows(cost, ranks)}
    summary = {"status": "ok", "shared_cores": shared}
    return allreduce_sweep.Sweep(write_files(folder, config, summary, sweep=swept).folder)


def make_roofline(operations: dict[str, tuple] | None = None, **changed) -> roofline.Roofline:
    """A measured roofline of 100 GFLOP/s and 10 GB/s, whose two limits meet at 10 FLOP/byte.

    operations: {name: (FLOP/byte, achieved FLOP/s, whether all bytes fit in the cache)}.
    """
    names = ("intensity", "achieved_flops_per_second", "fits_in_cache")
    rows = [
        {"name": name, **dict(zip(names, values, strict=True))}
        for name, values in (operations or OPERATIONS).items()
    ]
    content = {
        "device": "cpu",
        "dtype": "float32",
        "processes": 1,
        "size": "small",
        "global_batch": 8,
        "peak_flops_per_second": 100e9,
        "bandwidth_bytes_per_second": 10e9,
        "cache_bytes": 32 * 2**20,
        "operations": rows,
    }
    return roofline.Roofline(content | describe_hardware(cores=2, gpus=1) | changed)


OPERATIONS = {
    "residual add": (1 / 12, 0.8e9, False),
    "embedding": (0.2, 1e9, True),
    "GELU": (0.625, 2e9, False),
    "AdamW": (0.5, 2.1e9, False),
    "AdamW, fused": (0.5, 4.9e9, False),
    "LayerNorm": (1.0, 9e9, False),
    "softmax and loss": (1.0, 8.5e9, True),
    "attention": (128.0, 60e9, False),
    "up-projection": (280.0, 90e9, False),
}
