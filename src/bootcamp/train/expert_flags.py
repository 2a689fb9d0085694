"""What expert parallelism asks of the flags."""

from bootcamp.train import tensor_flags
from bootcamp.train.context import RunContext


def experts_of_each(context: RunContext) -> int:
    """How many experts of a layer each rank has; refuses another model, and unequal parts."""
    return tensor_flags.parts_of_each(context, "expert", "moe", "experts")
