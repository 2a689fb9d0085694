"""The flags of single strategies, and what these ask of model and ranks before training."""

import argparse

from bootcamp.train import environment, models
from bootcamp.train.refusal import refuse
from bootcamp.train.run_context import RunContext


def _unequal(ranks_of_a_group: int) -> str:
    """Say why the ranks make no such groups, and which they make; empty if they do."""
    world = environment.count()
    if ranks_of_a_group >= 1 and world % ranks_of_a_group == 0:
        return ""
    divisors = [str(size) for size in range(1, world + 1) if world % size == 0]
    return (
        f"{world} ranks do not divide into groups of {ranks_of_a_group}. "
        f"Give one of {', '.join(divisors)}."
    )


def neighbours(text: str) -> int:
    """Parse --reshard. Raises ArgumentTypeError where the ranks make no such groups."""
    if wrong := _unequal(int(text)):
        raise argparse.ArgumentTypeError(wrong.rstrip("."))  # argparse ends the sentence
    return int(text)


SHARDING = {
    "--keep-gathered": {
        "action": "store_true",
        "help": "keep a block's parameters from its forward to its backward pass: less traffic",
    },
}
HYBRID_SHARDING = SHARDING | {
    "--shard": {
        "type": int,
        "default": environment.local_count() if environment.knows_its_host() else None,
        "help": "ranks that share one copy of the model (default: those of a host)",
    },
}
SHARDING_IN_PRACTICE = {
    "--gather-dtype": {
        "choices": ("float32", "bfloat16"),
        "help": "of gathered parameters and of arithmetic (default: that of the shards, --dtype)",
    },
    "--reduce-dtype": {
        "choices": ("float32", "bfloat16"),
        "help": "of gradients while they are summed over the ranks (default: --dtype)",
    },
    "--reshard": {
        "type": neighbours,
        "help": "neighbours that keep the parameters together from forward to backward pass "
        "(default: all ranks)",
    },
    "--micro-batches": {"type": int, "default": 2, "help": "parts of a rank's samples"},
    "--clip": {"type": float, "default": 0.5, "help": "longest gradient of the model"},
}
ZERO_STAGE = {
    "--stage": {
        "type": int,
        "default": 1,
        "choices": (0, 1, 2, 3),
        "help": "what is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too",
    },
}
SEQUENCE_PARALLEL = {
    "--sequence-parallel": {
        "action": argparse.BooleanOptionalAction,
        "default": False,
        "help": "between the blocks, each rank keeps a part of the text",
    }
}


def check_shard(args: argparse.Namespace) -> None:
    """Refuse a --shard that the ranks do not divide by."""
    if args.shard is None:
        refuse(
            "--shard is missing, and this launcher does not say how many ranks are on a host "
            "(LOCAL_WORLD_SIZE). Give --shard: the ranks that share one copy of the model."
        )
    if wrong := _unequal(args.shard):
        refuse(f"--shard {args.shard}: {wrong}")


def check_heads(context: RunContext) -> None:
    """Refuse a model whose attention heads do not divide over the tensor-parallel ranks."""
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


def parts_of_each(context: RunContext, model: str, parts: str) -> int:
    """Count a rank's share of what the model is made of: the stripes or experts of each layer.

    Refuses another model, and a number of ranks that does not divide them.
    """
    args, (ranks,) = context.args, context.mesh
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
