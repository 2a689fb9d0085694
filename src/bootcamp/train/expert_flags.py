"""What expert parallelism asks of the flags."""

from bootcamp.train import models
from bootcamp.train.context import RunContext
from bootcamp.train.refusal import refuse


def experts_of_each(context: RunContext) -> int:
    """How many experts of a layer each rank has; refuses another model, and unequal parts."""
    args, ranks = context.args, context.size("expert")
    if args.model != "moe":
        refuse(f"--model {args.model}: this script divides experts over ranks. Say --model moe.")
    experts = models.moe.SIZES[args.size]["experts"]
    if experts % ranks:
        refuse(
            f"--size {args.size}: {experts} experts do not divide over {ranks} ranks. Start a "
            f"number of ranks that divides {experts}."
        )
    return experts // ranks
