"""Costs of sharding by formula: memory of a rank, bytes that it sends, bytes on a host's link.

ZeRO: Rajbhandari et al., arXiv:1910.02054, sections 5 and 7. FSDP: arXiv:2304.11277, section 3.2.
"""

import heapq
import math
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

KINDS = ("parameters", "gradients", "optimizer")
MIXED = {"parameters": 2, "gradients": 2, "optimizer": 12}  # 16 bit, with Adam in float32 (K = 12)
FLOAT32 = {"parameters": 4, "gradients": 4, "optimizer": 8}  # AdamW: two numbers each
DEEPSPEED_FLOAT32 = {**FLOAT32, "optimizer": 12}  # and its own copy of the part that it updates

# how many times (n-1)/n of a tensor's bytes each of n ranks of a ring sends
RING = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
GLOO = {**RING, "reduce-scatter": 2}  # gloo reduces the whole tensor and keeps a part
OF_STAGE = ("ddp", "zero1", "zero2", "hsdp")  # strategy by stage of ZeRO; hsdp of one row is fsdp


class Group(NamedTuple):
    """So many ranks, each `stride` numbers after the one before."""

    ranks: int
    stride: int = 1

    def count_in_host(self, per_host: int) -> int:
        return max(1, min(self.ranks, per_host // self.stride))


def rank_bytes(
    parameters: float, ranks: int, stage: int, each: dict[str, int] = MIXED
) -> dict[str, float]:
    """Return the bytes of the model states on one of the ranks, by kind.

    stage: of ZeRO; 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too.
    each: bytes for each parameter.
    """
    first = {"parameters": 3, "gradients": 2, "optimizer": 1}
    return {k: each[k] * parameters / (ranks if stage >= first[k] else 1) for k in KINDS}


def flat_part(parameters: int, ranks: int) -> int:
    """Count a rank's part when DeepSpeed puts all parameters in a row, stages 1 and 2.

    The row is padded so that each part begins at a multiple of four bytes in 16 bit too.
    """
    return 2 * math.ceil(parameters / (2 * ranks))


def parts_one_by_one(shapes: list[tuple[int, ...]], ranks: int) -> int:
    """Count a rank's part when DeepSpeed cuts each parameter by itself, stage 3."""
    return sum(math.ceil(math.prod(shape) / ranks) for shape in shapes)


def rows_of_rank(shapes: list[tuple[int, ...]], ranks: int, rank: int = 0) -> int:
    """Count the numbers that a rank holds when FSDP2 cuts each parameter by its rows.

    A rank gets ceil(rows / ranks) of them, the last ranks what is left: nothing, perhaps.
    """
    held = 0
    for rows, *rest in shapes:
        each = math.ceil(rows / ranks)
        held += max(0, min(each, rows - rank * each)) * math.prod(rest)
    return held


@lru_cache(maxsize=8)
def whole_tensors(sizes: tuple[int, ...], ranks: int) -> list[list[int]]:
    """Deal tensors, the largest first, to the emptiest rank, as torch's ZeroRedundancyOptimizer."""
    parts, held = [[] for _ in range(ranks)], [(0, rank) for rank in range(ranks)]
    for position in sorted(range(len(sizes)), key=lambda position: -sizes[position]):
        numbers, rank = held[0]
        parts[rank].append(position)
        heapq.heapreplace(held, (numbers + sizes[position], rank))
    return parts


def ring_bytes(kind: str, size: float, ranks: int, factors: dict[str, int] = RING) -> float:
    """Return the bytes that a rank sends for a collective (Patarasuk and Yuan, JPDC 69, 2009).

    size: bytes of the whole tensor; of an all-to-all what a rank hands in. factors: RING or GLOO.
    """
    return factors[kind] * (ranks - 1) / ranks * size


def bytes_of_calls(
    calls: dict[tuple[str, int], int], ranks: int, factors: dict[str, int] = RING
) -> float:
    """Return the bytes that a rank sends for these collectives: {(kind, bytes): how often}."""
    return sum(
        count * ring_bytes(kind, size, ranks, factors) for (kind, size), count in calls.items()
    )


def split_by_link(
    kind: str, size: float, group: Group, per_host: int, factors: dict[str, int] = RING
) -> dict[str, float]:
    """Return {"inside", "between"}: bytes that a rank sends in its host, and to other hosts.

    size, factors: as in ring_bytes.
    """
    n, local = group.ranks, group.count_in_host(per_host)
    sent, leaving = ring_bytes(kind, size, n, factors), 0.0
    if local < n:
        # an all-to-all's share for other hosts, from each rank; a ring leaves a host over one edge
        leaving = sent * (n - local) / (n - 1) if kind == "all-to-all" else sent / local
    return {"inside": sent - leaving, "between": leaving}


def collectives(
    strategy: str,
    shard: int = 1,  # ranks of a row, for hsdp
    keep_gathered: bool = False,  # FSDP gathers once a step
    number: float = 1.0,  # bytes of a sent gradient over those of a parameter: 0.5 for an fp16 hook
    root: float = 0.0,  # share of the parameters that stays gathered from forward to backward
    micro_batches: int = 1,  # FSDP gathers and reduces for each; an all-reduce comes once
    once: bool = False,  # FSDP reduces the last one's alone (set_requires_gradient_sync)
    reshard: int = 0,  # neighbours that keep parameters between passes (reshard_after_forward)
) -> list[tuple[str, str, float]]:
    """List a strategy's collectives in a step: (axis, kind, size as a share of the model).

    An axis is shard, replicate or neighbours. strategy: ddp, zero1, zero2, fsdp (ZeRO-3) or hsdp.
    zero1 and zero2 are the paper's; torch's ZeroRedundancyOptimizer is "zero1 of torch".
    """
    gather, reduce = ("shard", "all-gather", 1.0), ("shard", "reduce-scatter", number)
    again = ("neighbours" if reshard else "shard", "all-gather", 1 - root)
    gathers = [gather] if keep_gathered else [gather, again]
    sharded = (gathers if once else [*gathers, reduce]) * (micro_batches - 1) + [*gathers, reduce]
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
    """Return the bytes that a rank sends in a step. how: arguments of `collectives`."""
    return sum(_sent_by_link(strategy, model_bytes, ranks, ranks, factors, **how).values())


def link_bytes(
    strategy: str, model_bytes: float, ranks: int, hosts: int, factors: dict[str, int] = RING, **how
) -> float:
    """Return the bytes that one host sends to others in a step. how: as of `sent_bytes`."""
    per_host = ranks // hosts
    sent = _sent_by_link(strategy, model_bytes, ranks, per_host, factors, **how)
    return per_host * sent["between"]


def _sent_by_link(strategy: str, model_bytes: float, ranks: int, per_host: int, factors, **how):
    shard, total = how.get("shard", ranks), Counter()
    groups = {"shard": Group(shard), "replicate": Group(ranks // shard, shard)}
    groups["neighbours"] = Group(how.get("reshard", 0))
    for axis, kind, share in collectives(strategy, **how):
        total.update(split_by_link(kind, share * model_bytes, groups[axis], per_host, factors))
    return total
