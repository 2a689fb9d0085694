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
            f"--kv-heads {args.kv_heads}: heads of keys do not divide over {ranks} tensor-parallel "
            "ranks, and here no rank keeps a copy of another one's. Start fewer ranks, or give "
            "more of these heads."
        )


def stripes_of_each(context: RunContext) -> int:
    """How many stripes of a StripedLSTM each rank has; refuses another model, and unequal parts."""
    args, ranks = context.args, context.size("tensor")
    if args.model != "striped-lstm":
        refuse(f"--model {args.model}: this script knows stripes. Say --model striped-lstm.")
    stripes = models.striped_lstm.SIZES[args.size]["stripes"]
    if stripes % ranks:
        refuse(
            f"--size {args.size}: {stripes} stripes do not divide over {ranks} ranks. Start a "
            f"number of ranks that divides {stripes}, or take another --size."
        )
    return stripes // ranks
