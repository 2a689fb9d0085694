"""The flags of the sharded scripts, and what follows from them before any rank trains."""

import argparse

from bootcamp.train import environment
from bootcamp.train.refusal import refuse


def _unequal(ranks_of_a_group: int) -> str:
    """Why the ranks make no such groups, and which they make; empty if they do."""
    world = environment.count()
    if ranks_of_a_group >= 1 and world % ranks_of_a_group == 0:
        return ""
    divisors = [str(size) for size in range(1, world + 1) if world % size == 0]
    return (
        f"{world} ranks do not divide into groups of {ranks_of_a_group}. "
        f"Give one of {', '.join(divisors)}."
    )


def neighbours(text: str) -> int:
    """The value of --reshard. Raises ArgumentTypeError where the ranks make no such groups."""
    if wrong := _unequal(int(text)):
        raise argparse.ArgumentTypeError(wrong.rstrip("."))  # argparse ends the sentence
    return int(text)


FLAGS = {
    "--keep-gathered": {
        "action": "store_true",
        "help": "keep a block's parameters from its forward to its backward pass: less traffic",
    },
}
HYBRID_FLAGS = {
    **FLAGS,
    "--shard": {
        "type": int,
        "default": environment.local_count() if environment.knows_its_host() else None,
        "help": "ranks that share one copy of the model (default: those of a host)",
    },
}
WIDTHS = ("float32", "bfloat16")
PRACTICE_FLAGS = {
    "--gather-dtype": {
        "choices": WIDTHS,
        "help": "of gathered parameters and of arithmetic (default: that of the shards, --dtype)",
    },
    "--reduce-dtype": {
        "choices": WIDTHS,
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
STAGE_FLAGS = {
    "--stage": {
        "type": int,
        "default": 1,
        "choices": (0, 1, 2, 3),
        "help": "what is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too",
    },
}


def check(args: argparse.Namespace) -> None:
    """Refuse a --shard that the ranks do not divide by: one sentence, exit code 2."""
    if args.shard is None:
        refuse(
            "--shard is missing, and this launcher does not say how many ranks are on a host "
            "(LOCAL_WORLD_SIZE). Give --shard: the ranks that share one copy of the model."
        )
    if wrong := _unequal(args.shard):
        refuse(f"--shard {args.shard}: {wrong}")
