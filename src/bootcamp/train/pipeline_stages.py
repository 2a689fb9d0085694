"""The rank side of pipelines: what a schedule asks of the flags, and how a model is cut.

Also a recorder of the actions that a rank really executes. bootcamp.costs.pipeline_schedules has
the schedules themselves.
"""

import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch import nn

from bootcamp.costs import layer_cut
from bootcamp.costs.pipeline_schedules import CHUNKS, Impossible, plan, stages_of_rank
from bootcamp.train import models, tensor_flags
from bootcamp.train.context import RunContext
from bootcamp.train.refusal import refuse

__all__ = ["SCHEDULES", "FLAGS", "check", "cut", "join", "record_actions", "stages_of_rank"]


@dataclass(frozen=True)
class Schedule:
    """One way to order forwards and backwards.

    name_in_torch: its class in torch.distributed.pipelining.schedules.
    chunks: how many stages each rank holds.
    """

    name_in_torch: str
    chunks: int


NAMES_IN_TORCH = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}
SCHEDULES = {name: Schedule(known, CHUNKS[name]) for name, known in NAMES_IN_TORCH.items()}
FLAGS = {
    "--schedule": {"default": "1f1b", "choices": list(SCHEDULES), "help": "order of the work"},
    "--micro-batches": {"type": int, "default": 4, "help": "parts of a batch in the pipeline"},
}


def check(context: RunContext) -> None:
    """End the process with one sentence, exit code 2, if the flags don't fit schedule or axes."""
    if "tensor" in context.axes:
        tensor_flags.check(context)
    args, ranks = context.args, context.size("pipeline")
    schedule, m = SCHEDULES[args.schedule], args.micro_batches
    stages, layers = schedule.chunks * ranks, len(models.stage_names(args))
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
        refuse(
            "--model resnet50: its BatchNorm would normalise each micro-batch by itself, which is "
            "another training. Choose gpt, mlp or striped-lstm."
        )


def cut(model: nn.Sequential, parts: int) -> list[nn.Sequential]:
    """The model in consecutive parts of nearly equal numbers of stages; names are kept."""
    return [model[begin:end] for begin, end in pairwise(layer_cut.equal(len(model), parts))]


def join(parts) -> nn.Sequential:
    """What a rank holds as one module, to be recorded and optimized; it is never called."""
    whole = nn.Sequential()
    for part in parts:
        for name, stage in part.named_children():
            whole.add_module(name, stage)
    return whole


def record_actions(run_dir: Path, rank: int, stages: list) -> None:
    """From now on each action of these stages leaves a line in `ranks/<rank>.actions.jsonl`.

    A line has `step`, `stage`, `action`, `micro_batch`, and `began` and `ended` in seconds of the
    host's monotonic clock, which all of its processes share. Actions are F, a forward; B, a whole
    backward; I and W, the two halves of one: the gradient of the input, that of the weights.
    On a GPU the times are those at which the work was queued, not those of its execution.
    """
    file = open(run_dir / "ranks" / f"{rank}.actions.jsonl", "a", buffering=1)  # noqa: SIM115
    counts: dict[tuple, int] = {}

    def observed(method, stage: int, name):
        def call(micro_batch, *arguments, **named):
            began = time.monotonic()
            result = method(micro_batch, *arguments, **named)
            action = name(named)
            key = (stage, action, micro_batch)
            step = counts[key] = counts.get(key, -1) + 1
            row = {"step": step, "stage": stage, "action": action, "micro_batch": micro_batch}
            row |= {"began": began, "ended": time.monotonic()}
            file.write(json.dumps(row) + "\n")
            return result

        return call

    for stage in stages:
        for method, name in (
            ("forward_one_chunk", lambda named: "F"),
            ("backward_one_chunk", lambda named: "B" if named.get("full_backward", True) else "I"),
            ("backward_weight_one_chunk", lambda named: "W"),
        ):
            original = getattr(stage, method)
            setattr(stage, method, observed(original, stage.stage_index, name))
