"""Pipelines within a rank: flags, cutting a model, and recording a schedule's actions."""

import json
import time
from collections import OrderedDict, defaultdict
from itertools import count, pairwise
from pathlib import Path

from torch import nn

from bootcamp.costs import layer_cut
from bootcamp.costs.pipeline_schedules import CHUNKS, Impossible, plan, stages_of_rank
from bootcamp.train import flags, models
from bootcamp.train.config import RunContext
from bootcamp.train.process_end import refuse

__all__ = ["NAMES_IN_TORCH", "FLAGS", "check", "cut", "join", "record_actions", "stages_of_rank"]

NAMES_IN_TORCH = {  # of the classes in torch.distributed.pipelining.schedules
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}
FLAGS = {
    "--schedule": {"default": "1f1b", "choices": list(NAMES_IN_TORCH), "help": "order of the work"},
    "--micro-batches": {"type": int, "default": 4, "help": "parts of a batch in the pipeline"},
}


def check(context: RunContext) -> None:
    """Refuse flags that don't fit the schedule or the axes."""
    if "tensor" in context.axes:
        flags.check_heads(context)
    args, ranks, m = context.args, context.size("pipeline"), context.args.micro_batches
    stages, layers = CHUNKS[args.schedule] * ranks, len(models.stage_names(args))
    share = args.global_batch // context.data_parallel
    try:
        plan(args.schedule, ranks, m)
    except Impossible as error:
        refuse(f"--micro-batches {m}: {error}. Give another number, or --schedule gpipe.")
    if share % m:
        refuse(
            f"--micro-batches {m} does not divide the {share} samples of a pipeline's batch. "
            f"Give a --global-batch that is a multiple of {m * context.data_parallel}."
        )
    if stages > layers:
        refuse(
            f"--schedule {args.schedule}: {ranks} ranks need {stages} stages, {args.model} at size "
            f"{args.size} has {layers} parts to give. Start fewer ranks, or take a larger --size."
        )
    if args.model == "resnet50":
        refuse("--model resnet50: its BatchNorm would normalise each micro-batch by itself.")


def cut(model: nn.Sequential, parts: int) -> list[nn.Sequential]:
    """Cut a model into parts of nearly equal numbers of consecutive stages; names are kept."""
    return [model[begin:end] for begin, end in pairwise(layer_cut.equal(len(model), parts))]


def join(parts) -> nn.Sequential:
    """Join a rank's parts to one module, to be recorded and optimized; it is never called."""
    return nn.Sequential(OrderedDict(pair for part in parts for pair in part.named_children()))


def record_actions(run_dir: Path, rank: int, stages: list) -> None:
    """Write a line for each later action of these stages to `ranks/<rank>.actions.jsonl`.

    A line has `step`, `stage`, `action`, `micro_batch`, and `began` and `ended` in seconds of the
    host's monotonic clock, which all of its processes share. Actions are F, a forward; B, a whole
    backward; I and W, the two halves of one: the gradient of the input, that of the weights.
    On a GPU the times are those at which the work was queued, not those of its execution.
    """
    file = open(run_dir / "ranks" / f"{rank}.actions.jsonl", "a", buffering=1)  # noqa: SIM115
    steps = defaultdict(count)  # of each action: the next step that it belongs to

    def observe(stage, method: str, action: str):
        call = getattr(stage, method)

        def observed(micro_batch, *arguments, **named):
            began = time.monotonic()
            result = call(micro_batch, *arguments, **named)
            times = {"began": began, "ended": time.monotonic()}
            name = action if named.get("full_backward", True) else "I"
            row = {"stage": stage.stage_index, "action": name, "micro_batch": micro_batch}
            step = next(steps[tuple(row.values())])
            file.write(json.dumps({"step": step, **row, **times}) + "\n")
            return result

        setattr(stage, method, observed)

    for stage in stages:
        observe(stage, "forward_one_chunk", "F")
        observe(stage, "backward_one_chunk", "B")
        observe(stage, "backward_weight_one_chunk", "W")
