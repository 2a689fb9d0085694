"""What sharding costs by formula: memory of a rank, bytes that it sends, bytes on a host's link.

Memory is that of ZeRO (Rajbhandari et al., arXiv:1910.02054, section 5), traffic that of its
section 7 and of FSDP (Zhao et al., arXiv:2304.11277, section 3.2).
"""

import heapq
import math
from functools import lru_cache

KINDS = ("parameters", "gradients", "optimizer")
MIXED = {"parameters": 2, "gradients": 2, "optimizer": 12}  # 16 bit, with Adam in float32 (K = 12)
FLOAT32 = {"parameters": 4, "gradients": 4, "optimizer": 8}  # AdamW: two numbers each
DEEPSPEED_FLOAT32 = {**FLOAT32, "optimizer": 12}  # and its own copy of the part that it updates

# how many times (n-1)/n of a tensor's bytes each of n ranks of a ring sends
RING = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
GLOO = {**RING, "reduce-scatter": 2}  # gloo reduces the whole tensor and keeps a part


def rank_bytes(
    parameters: float, ranks: int, stage: int, each: dict[str, int] = MIXED
) -> dict[str, float]:
    """Bytes of the model states on one of the ranks, by kind.

    parameters: how many numbers the model has. stage: of ZeRO; 0 shards nothing, 1 the optimizer's
    state, 2 the gradients too, 3 the parameters too. each: bytes for each parameter.
    """
    sharded = {kind: stage >= first for kind, first in zip(KINDS, (3, 2, 1), strict=True)}
    return {kind: each[kind] * parameters / (ranks if sharded[kind] else 1) for kind in KINDS}


def flat_part(parameters: int, ranks: int) -> int:
    """Numbers in a rank's part when DeepSpeed puts all parameters in a row, stages 1 and 2.

    The row is padded to a multiple of twice the ranks, so that each part begins at a multiple of
    four bytes in 16 bit too.
    """
    return 2 * math.ceil(parameters / (2 * ranks))


def parts_one_by_one(shapes: list[tuple[int, ...]], ranks: int) -> int:
    """Numbers in a rank's part when DeepSpeed cuts each parameter by itself, stage 3."""
    return sum(math.ceil(math.prod(shape) / ranks) for shape in shapes)


def rows_of_rank(shapes: list[tuple[int, ...]], ranks: int, rank: int = 0) -> int:
    """Numbers that a rank holds when FSDP2 cuts each parameter by its rows.

    A rank gets ceil(rows / ranks) of them, the last ranks what is left: nothing, perhaps.
    """
    held = 0
    for rows, *rest in shapes:
        each = math.ceil(rows / ranks)
        held += max(0, min(each, rows - rank * each)) * math.prod(rest)
    return held


@lru_cache(maxsize=8)
def whole_tensors(sizes: tuple[int, ...], ranks: int) -> list[list[int]]:
    """Positions of the tensors that each rank gets when none is cut: torch's ZeRO-1.

    ZeroRedundancyOptimizer deals them out, the largest first, each to the rank with the least.
    """
    parts, held = [[] for _ in range(ranks)], [(0, rank) for rank in range(ranks)]
    for position in sorted(range(len(sizes)), key=lambda position: -sizes[position]):
        numbers, rank = held[0]
        parts[rank].append(position)
        heapq.heapreplace(held, (numbers + sizes[position], rank))
    return parts


def ring_bytes(kind: str, size: float, ranks: int, factors: dict[str, int] = RING) -> float:
    """Bytes that a rank sends for a collective (Patarasuk and Yuan, JPDC 69, 2009).

    size: bytes of the whole tensor; of an all-to-all what one rank hands in. factors: RING, as NCCL
    does it, or GLOO.
    """
    return factors[kind] * (ranks - 1) / ranks * size


def bytes_of_calls(
    calls: dict[tuple[str, int], int], ranks: int, factors: dict[str, int] = RING
) -> float:
    """Bytes that a rank sends for these collectives: {(kind, bytes): how often}."""
    return sum(
        count * ring_bytes(kind, size, ranks, factors) for (kind, size), count in calls.items()
    )


def collectives(
    strategy: str,
    shard: int = 1,
    keep_gathered: bool = False,
    number: float = 1.0,
    root: float = 0.0,
    micro_batches: int = 1,
    once: bool = False,
    reshard: int = 0,
) -> list[tuple[str | int, str, float]]:
    """What a strategy sends in a step: (axis, collective, its size as a share of the model).

    An axis is shard, replicate, or a number: so many neighbours. strategy: ddp, zero1, zero2, fsdp
    (ZeRO-3) or hsdp; zero1 and zero2 are the paper's, torch's ZeroRedundancyOptimizer is "zero1 of
    torch". shard: the ranks of a row, for hsdp. number: bytes of
    a gradient's element on the wire as a share of a gathered parameter's, as 0.5 for DDP's fp16
    hook. root: share of the parameters that stays gathered from forward to backward pass.
    micro_batches: FSDP gathers and reduces for each, DDP and HSDP's replicas all-reduce once. once:
    FSDP reduces the last one's alone (set_requires_gradient_sync). reshard: neighbours that keep
    the parameters between the passes (reshard_after_forward).
    """
    gather, reduce = ("shard", "all-gather", 1.0), ("shard", "reduce-scatter", number)
    again = (reshard or "shard", "all-gather", 1 - root)
    gathers = [gather] if keep_gathered else [gather, again]
    times = micro_batches - 1
    sharded = (gathers if once else [*gathers, reduce]) * times + [*gathers, reduce]
    return {
        "ddp": [("shard", "all-reduce", number)],
        "zero1": [reduce, gather],
        "zero1 of torch": [("shard", "all-reduce", number), gather],  # in fact broadcasts
        "zero2": [reduce, gather],
        "fsdp": sharded,
        "hsdp": [*sharded, ("replicate", "all-reduce", number / shard)],
    }[strategy]


def sent_bytes(
    strategy: str, model_bytes: float, ranks: int, factors: dict[str, int] = RING, **how
) -> float:
    """Bytes that a rank sends in a step. how: arguments of `collectives`."""
    return sum(
        ring_bytes(kind, share * model_bytes, size, factors)
        for size, _, kind, share in _rings(strategy, ranks, **how)
    )


def link_bytes(
    strategy: str, model_bytes: float, ranks: int, hosts: int, factors: dict[str, int] = RING, **how
) -> float:
    """Bytes that one host sends to others in a step. Rings follow the order of the ranks.

    A ring sends the same over each of its edges, and leaves each of its hosts once.
    """
    of_host, total = ranks // hosts, 0.0
    for size, stride, kind, share in _rings(strategy, ranks, **how):
        in_host = max(1, min(size, of_host // stride))
        if in_host < size:
            rings = of_host / in_host
            total += rings * ring_bytes(kind, share * model_bytes, size, factors)
    return total


def _rings(strategy: str, ranks: int, **how) -> list[tuple[int, int, str, float]]:
    """(ranks of a ring, how many numbers they are apart, collective, share of the model)."""
    shard = how.get("shard", ranks)
    axes = {"shard": (shard, 1), "replicate": (ranks // shard, shard)}
    return [
        (*axes.get(axis, (axis, 1)), kind, share)
        for axis, kind, share in collectives(strategy, **how)
    ]
