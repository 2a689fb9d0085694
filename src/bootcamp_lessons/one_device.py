"""Lessons 02 and 02b: kept activations, fp16, AdamW's time; and GPT-2 small on one GPU.

tools/gpu.py records the latter; until it has, tables show what the planner expects of an H100.
"""

from argparse import Namespace
from pathlib import Path

import torch

from bootcamp import units
from bootcamp.costs import memory, model_shapes, planner
from bootcamp.costs.hardware import Cluster, gpu, shown_in_lessons
from bootcamp.costs.model_shapes import course_model
from bootcamp.costs.plans import Plan
from bootcamp.costs.sharding import FLOAT32
from bootcamp.experiments import replay
from bootcamp.paths import REFERENCE
from bootcamp.table import Table
from bootcamp.train import benchmark, data, models, optimizers
from bootcamp_lessons.checkpoints import furthest

SAMPLES = 16
NOT_YET = "No GPU has been recorded yet."
WAYS = {
    "float32, without TF32": {"precision": "fp32"},
    "bfloat16": {},
    "bfloat16, blocks recomputed": {"recompute": "full"},
}
SPEED = {
    "batch": "batch",
    "tokens per second": lambda row: round(row["tokens_per_second"]),
    "MFU": lambda row: "-" if row["mfu"] is None else f"{row['mfu']:.0%}",
}


def kept_bytes(keep: str, samples: int, size: str = "tiny") -> float:
    """Return the bytes kept in float32; keep: "all", "products" or "inputs" of each block."""
    model, plan = course_model("gpt", size), Plan(micro_batch=samples, recompute=keep)
    return memory.forward_bytes(model, plan, model.parts)


def training_memory() -> Table:
    """Table state and activations of each size of the GPT, and the GPUs that have as much."""
    rows = []
    for size in model_shapes.GPT:
        state = sum(FLOAT32.values()) * model_shapes.parameters("gpt", size)
        kept = kept_bytes("all", SAMPLES, size)
        row = {"size": size, "state GB": state / 1e9, "activations GB": kept / 1e9}
        needs = (state + kept) / 1e9
        room = {gpu["lessons"]: 0.9 * float(gpu["memory_gb"]) for gpu in shown_in_lessons()}
        fits = [name for name, free in room.items() if free > needs]
        rows.append({**row, "fits on": ", ".join(fits) or "none of these"})
    caption = f"By formula: float32, AdamW, {SAMPLES} samples of 1,024 bytes (tiny: of 64)"
    return Table(rows, caption)


def memory_row(name: str, run, plain) -> dict:
    """Return a run's memory and the distance of its losses from those of a plain run."""
    megabytes = {
        f"{kind} MB": run.ranks[0][f"{kind.rstrip('s').split()[0]}_bytes"] / 1e6
        for kind in ("activations", "parameters", "gradients", "optimizer state")
    }
    return {"run": name, **megabytes, "loss off by": furthest(run, plain)}


def adamw_seconds(fused: bool) -> float:
    """Time an AdamW step over 4 million parameters on one core, or on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(2048, 2048, device=device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], fused=fused)
    return benchmark.time_fastest_call(optimizer.step, device)


def gradients(steps: int = 60, samples: int = 128) -> dict[str, torch.Tensor]:
    """Train the tiny GPT in float32; return the gradients of its scores and parameters."""
    torch.set_num_threads(1)
    flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=16)
    flags.optimizer, flags.lr = "adamw", 1e-3
    model, batches = models.build(flags), data.Batches(flags, rank=0, world=1)
    optimizer = optimizers.build(flags, model.parameters())
    for step in range(steps):
        inputs, targets = batches(step)
        optimizer.zero_grad()
        models.loss(model(inputs), targets).backward()
        optimizer.step()
    flags.global_batch = samples
    inputs, targets = data.Batches(flags, rank=0, world=1)(0)
    optimizer.zero_grad()
    scores = model(inputs)
    scores.retain_grad()  # PyTorch keeps no gradient of what is not a parameter, unless asked
    models.loss(scores, targets).backward()
    of_parameters = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return {"gradient of the scores": scores.grad, "gradient of the parameters": of_parameters}


def convert_to_fp16(gradient: torch.Tensor, scale: float) -> dict[str, float]:
    """Return the shares of a gradient's elements that, times the scale, meet each fate in fp16."""
    half = (gradient[gradient != 0] * scale).half().abs()
    zero, infinite = half == 0, half.isinf()
    few_digits = (half < torch.finfo(torch.float16).tiny) & ~zero
    fates = {"zero": zero, "few digits": few_digits, "infinite": infinite}
    fates["all digits"] = ~(zero | few_digits | infinite)
    return {fate: elements.float().mean().item() for fate, elements in fates.items()}


def scale_table(run, first_scale: float) -> Table:
    """Table the loss scale before each step of a run that prints it, and the skipped steps."""
    after = [float(line) for line in run.output(0).splitlines() if line[:1].isdigit()]
    rows = []
    for step, (scale, new) in enumerate(zip([first_scale, *after], after, strict=False)):
        did = "skipped" if new < scale else "made; scale doubled" if new > scale else "made"
        rows.append({"step": step, "scale": scale, "loss": run.losses[step], "update": did})
    return Table(rows, "fp16 with a loss scale that begins too high, measured here")


def expect(batch: int = SAMPLES, **how) -> planner.Answer:
    """Return what the planner expects of GPT-2 small on an H100. how: fields of Plan."""
    cluster, model = Cluster(gpu("H100"), 1), model_shapes.find_model("gpt2")
    return planner.predict(model, cluster, Plan(batch=batch, micro_batch=batch, **how))


def _table_expected(name: str, plans: dict) -> Table:
    """Table what is expected of plans, up to the first that doesn't fit; name: of their column."""
    rows = []
    for value, plan in plans.items():
        found = expect(**plan)
        row = {name: value, "tokens per second": round(found.tokens), "MFU": f"{found.mfu:.0%}"}
        rows.append({**row, "peak": units.size(found.peak_bytes), "limit": found.limit})
        if found.limit.startswith("memory"):
            rows[-1] = {name: value, "limit": found.limit}
            break
    return Table(rows, f"An H100, expected by the planner (lesson 10). {NOT_YET}")


def batch_table(reference: Path = REFERENCE) -> Table:
    """Table GPT-2 small in bf16, the batch doubled until it did not fit."""
    found, caption = replay.find_gpu_result("speed_small", "batches", reference)
    if not found:
        return _table_expected("batch", {2**n: {"batch": 2**n} for n in range(9)})
    peak = {"peak": lambda row: units.size(row["peak_bytes"])}
    rows = Table.of(found["rows"], {**SPEED, **peak, "ended": lambda _: "trained"}).rows
    rows.append({"batch": found["out of memory"]["batch"], "ended": "out of memory"})
    return Table(rows, caption)


def timing_table(reference: Path = REFERENCE) -> Table:
    """Table the time of a step by the CPU's clock and by CUDA events, without and with waiting."""
    found, caption = replay.find_gpu_result("speed_small", "asynchronous", reference)
    if not found:  # a step of one sample takes as long as its launches
        returned, ended = 1e3 * expect(1).seconds, 1e3 * expect().seconds
        caption = f"An H100, {SAMPLES} samples, expected by the planner (lesson 10). {NOT_YET}"
        rows = [("when the calls returned", returned), ("after synchronize()", ended)]
        return Table([{"clock read": when, "ms": round(ms)} for when, ms in rows], caption)
    read = {"when the calls returned": "returned", "after synchronize()": "synchronised"}
    clocks = {"ms by the CPU's clock": "{}_seconds", "ms by CUDA events": "event_seconds, {}"}
    rows = []
    for when, name in read.items():
        ms = {clock: 1e3 * found[key.format(name)] for clock, key in clocks.items()}
        rows.append({"clock read": when, **ms})
    return Table(rows, caption)


def variant_table(reference: Path = REFERENCE) -> Table:
    """Table GPT-2 small by number format, recomputing and compiling: speed and memory."""
    found, caption = replay.find_gpu_result("speed_small", "ways", reference)
    if not found:
        return _table_expected("way", WAYS)
    kept = ("optimizer", "activation", "peak")
    sizes = {kind: lambda row, kind=kind: units.size(row[f"{kind}_bytes"]) for kind in kept}
    return Table.of(found, {"way": "way", **SPEED, **sizes}, caption)
