"""Whether ranks compute or wait for a link: seconds of computing over seconds of sending.

A ratio above 1 can hide what is sent behind what is computed, if both go on at once. Between hosts
a ring has the bytes per second of all network cards of a host together, since it leaves each host
once. Backward passes compute twice what forward passes do.
"""

from bootcamp.costs.sharding import ring_bytes


def fsdp(
    tokens: float,
    flops_per_second: float,
    bytes_per_second: float,
    gathered: int = 2,
    reduced: int = 2,
    recompute: bool = False,
) -> float:
    """Of a step of FSDP over many ranks; tokens: of one micro-batch on a rank.

    gathered, reduced: bytes of a number. Each parameter costs 2 operations a token in the forward
    pass, is gathered in each pass and its gradient is reduced: how many there are drops out.
    """
    operations = (8 if recompute else 6) * tokens
    return operations / (2 * gathered + reduced) * bytes_per_second / flops_per_second


def tensor(
    width: float,
    ranks: int,
    flops_per_second: float,
    bytes_per_second: float,
    recompute: bool = False,
) -> float:
    """Of a block of a transformer whose matrices `ranks` ranks share, in 16 bits.

    24 operations for each token and width^2 in the forward pass, and two all-reduces of a row of
    `width` numbers in each pass (arXiv:1909.08053): the tokens drop out.
    """
    passes, sums = (4, 6) if recompute else (3, 4)
    operations = 24 * passes * width / ranks
    sent = sums * ring_bytes("all-reduce", 2, ranks)
    return operations / sent * bytes_per_second / flops_per_second


def pipeline(stages: int, micro_batches: int) -> float:
    """Micro-batches that a stage computes over those for which it waits while the pipeline fills.

    What is sent counts for nothing (arXiv:2104.04473, section 2.2).
    """
    return micro_batches / (stages - 1)


def hidden(ratio: float) -> float:
    """The most of a rank's FLOP/s that is reached where it sends and computes at once."""
    return min(1.0, ratio)


def in_turn(ratio: float) -> float:
    """The most that is reached where it computes, then waits: m / (m + p - 1) in a pipeline."""
    return ratio / (1 + ratio)
