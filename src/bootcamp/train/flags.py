"""The flags of single strategies, and checks of model and ranks before training."""

import argparse

from bootcamp.train import environment, models
from bootcamp.train.config import RunContext
from bootcamp.train.process_end import refuse

UNKNOWN = "unknown"  # how many ranks are on a host


def parse_group_size(text: str) -> int:
    """Parse a number of ranks. Raises ArgumentTypeError where all ranks make no such groups."""
    if text == UNKNOWN:
        raise argparse.ArgumentTypeError(
            "this launcher does not say how many ranks are on a host (LOCAL_WORLD_SIZE). "
            "Give a number"  # argparse ends the sentence
        )
    size, world = int(text), environment.world_size()
    divisors = [group for group in range(1, world + 1) if world % group == 0]
    if size not in divisors:
        raise argparse.ArgumentTypeError(
            f"{world} ranks do not divide into groups of {size}. "
            f"Give one of {', '.join(map(str, divisors))}"  # argparse ends the sentence
        )
    return size


SHARDING = {"--keep-gathered": {"action": "store_true", "help": "keep parameters till backward"}}
HYBRID_SHARDING = SHARDING | {
    "--shard": {
        "type": parse_group_size,
        "default": str(environment.local_world_size(UNKNOWN)),
        "help": "ranks that share one copy of the model (default: those of a host)",
    },
}
FLOATS = {"choices": ("float32", "bfloat16")}
SHARDING_IN_PRACTICE = {
    "--gather-dtype": FLOATS | {"help": "of gathered parameters, of arithmetic (default: --dtype)"},
    "--reduce-dtype": FLOATS | {"help": "of gradients summed over ranks (default: --dtype)"},
    "--reshard": {"type": parse_group_size}
    | {"help": "neighbours that keep parameters together until the backward pass (default: all)"},
    "--micro-batches": {"type": int, "default": 2, "help": "parts of a rank's samples"},
    "--clip": {"type": float, "default": 0.5, "help": "longest gradient of the model"},
}
ZERO_STAGE = {
    "--stage": {"type": int, "default": 1, "choices": (0, 1, 2, 3)}
    | {"help": "what is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too"},
}
SEQUENCE_PARALLEL = {
    "--sequence-parallel": {"action": "store_true", "help": "split the text between the blocks"}
}


def check_heads(context: RunContext) -> None:
    """Refuse a model whose attention heads do not divide over the tensor-parallel ranks."""
    count_parts_of_rank(context, "gpt", "heads")
    kv_heads, ranks = context.args.kv_heads, context.mesh[-1]
    if kv_heads and kv_heads % ranks:
        refuse(f"--kv-heads {kv_heads}: key-value heads do not divide over {ranks} ranks.")


def count_parts_of_rank(context: RunContext, model: str, parts: str) -> int:
    """Count a rank's heads, stripes, experts, positions or rows. Refuses what does not divide."""
    args, ranks = context.args, context.mesh[-1]  # neighbours share a layer: the last axis
    words = {"context": "positions of a text", "width": "rows of a matrix"}.get(parts, parts)
    if args.model != model:
        refuse(f"--model {args.model}: this script divides {words}. Say --model {model}.")
    count = models.shape(args)[parts]
    if parts == "width" and ranks == 1:  # FSDP2 then drops all but one of the tensors to be sent
        refuse("One rank has all rows, and FSDP2 gathers nothing. Start 2 or more.")
    if count % ranks:
        refuse(
            f"--size {args.size}: {count} {words} do not divide over {ranks} ranks. Start a "
            f"number of ranks that divides {count}, or take another --size."
        )
    return count // ranks
