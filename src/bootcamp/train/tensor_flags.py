"""What tensor parallelism asks of the flags."""

import argparse

from bootcamp.train import models
from bootcamp.train.context import RunContext
from bootcamp.train.refusal import refuse

FLAGS = {
    "--sequence-parallel": {
        "action": argparse.BooleanOptionalAction,
        "default": False,
        "help": "between the blocks, each rank keeps a part of the text",
    }
}


def check(context: RunContext) -> None:
    """End the process with one sentence, exit code 2, if the ranks can't share the model."""
    args, ranks = context.args, context.size("tensor")
    if args.model != "gpt":
        refuse(f"--model {args.model}: this script knows how to split gpt's matrices. Choose gpt.")
    heads = models.shape(args)["heads"]
    if heads % ranks:
        fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        refuse(
            f"--size {args.size}: {heads} attention heads do not divide over {ranks} "
            f"tensor-parallel ranks. Start one of {fits} of them, or take another --size."
        )
    if args.kv_heads and args.kv_heads % ranks:
        refuse(
            f"--kv-heads {args.kv_heads}: key-value heads do not divide over {ranks} "
            "tensor-parallel ranks, and here no rank keeps a copy of another rank's. Start fewer "
            "ranks, or ask for more of these heads."
        )


def stripes_of_each(context: RunContext) -> int:
    """How many stripes of a StripedLSTM each rank has; refuses another model, and unequal parts."""
    return parts_of_each(context, "tensor", "striped-lstm", "stripes")


def parts_of_each(context: RunContext, axis: str, model: str, parts: str) -> int:
    """How many of a model's `parts`, as its table of sizes names them, each rank of an axis has."""
    args, ranks = context.args, context.size(axis)
    if args.model != model:
        refuse(
            f"--model {args.model}: this script divides {parts} over ranks. Say --model {model}."
        )
    count = models.shape(args)[parts]
    if count % ranks:
        refuse(
            f"--size {args.size}: {count} {parts} do not divide over {ranks} ranks. Start a "
            f"number of ranks that divides {count}, or take another --size."
        )
    return count // ranks
