"""What lessons 02 and 02b compute beside their runs: kept activations, fp16, AdamW's time."""

from argparse import Namespace

import torch

from bootcamp.costs import memory, model_shapes
from bootcamp.costs.hardware import shown_in_lessons
from bootcamp.costs.model_shapes import ours
from bootcamp.costs.plans import Plan
from bootcamp.costs.sharding import FLOAT32
from bootcamp.table import Table
from bootcamp.train import benchmark, data, models, optimizers

SAMPLES = 16


def kept_bytes(keep: str, samples: int, size: str = "tiny") -> float:
    """What a GPT keeps for its backward pass, float32, by formula.

    keep: "all", "products" or "inputs" of each block. Outside of the blocks it keeps the
    embedding's sum, the head's norm and the loss's 256 probabilities.
    """
    model, plan = ours("gpt", size), Plan(micro_batch=samples, recompute=keep)
    return memory.forward_bytes(model, plan, model.parts)


def training_memory() -> Table:
    """State and activations of each size of the GPT by formula, and the GPUs that have as much."""
    rows = []
    for size in model_shapes.GPT:
        state = sum(FLOAT32.values()) * model_shapes.parameters("gpt", size)
        kept = kept_bytes("all", SAMPLES, size)
        row = {"size": size, "state GB": state / 1e9, "activations GB": kept / 1e9}
        needs = (state + kept) / 1e9
        fits = [gpu["lessons"] for gpu in shown_in_lessons() if float(gpu["memory_gb"]) > needs]
        rows.append({**row, "fits on": ", ".join(fits) or "none of these"})
    caption = f"By formula: float32, AdamW, {SAMPLES} samples of 1,024 bytes (tiny: of 64)"
    return Table(rows, caption)


def furthest(run, other) -> float:
    """The largest difference of the losses of a step."""
    return max(abs(one - two) for one, two in zip(run.losses, other.losses, strict=True))


def memory_row(name: str, run, plain) -> dict:
    """A run's memory beside how far its losses are from those of a plain run."""
    megabytes = {
        f"{kind} MB": run.ranks[0][f"{kind.rstrip('s').split()[0]}_bytes"] / 1e6
        for kind in ("activations", "parameters", "optimizer state")
    }
    return {"run": name, **megabytes, "loss off by": furthest(run, plain)}


def adamw_seconds(fused: bool) -> float:
    """An AdamW step over 4 million parameters on one core, or on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(2048, 2048, device=device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], fused=fused)
    return benchmark.fastest_seconds(optimizer.step, device)


def gradients(steps: int = 60, samples: int = 128) -> dict[str, torch.Tensor]:
    """Gradients of the tiny GPT after some training in float32: of its scores and parameters."""
    torch.set_num_threads(1)
    flags = {"model": "gpt", "size": "tiny", "seed": 0, "dtype": "float32"}
    flags = Namespace(**flags, global_batch=16, optimizer="adamw", lr=1e-3)
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


def in_fp16(gradient: torch.Tensor, scale: float) -> dict[str, float]:
    """The shares of a gradient's elements that, times the scale, meet each fate in fp16."""
    half = (gradient[gradient != 0] * scale).half().abs()
    zero, infinite = half == 0, half.isinf()
    few_digits = (half < torch.finfo(torch.float16).tiny) & ~zero
    fates = {"zero": zero, "few digits": few_digits, "infinite": infinite}
    fates["all digits"] = ~(zero | few_digits | infinite)
    return {fate: elements.float().mean().item() for fate, elements in fates.items()}


def scale_table(run, first_scale: float) -> Table:
    """The loss scale before each step of a run that prints it, and whether the step was skipped."""
    after = [float(line) for line in run.output(0).splitlines() if line[:1].isdigit()]
    rows = []
    for step, (scale, new) in enumerate(zip([first_scale, *after], after, strict=False)):
        did = "skipped" if new < scale else "made; scale doubled" if new > scale else "made"
        rows.append({"step": step, "scale": scale, "loss": run.losses[step], "update": did})
    return Table(rows, "fp16 with a loss scale that begins too high, measured here")
