"""Collectives simulated step by step: `simulate("all-reduce", "ring", 4).moments[-1]`.

A plan says which rank sends which chunk of its tensor to whom in each step; the simulation carries
it out and keeps whose contributions each chunk holds. Ring: Patarasuk and Yuan, JPDC 69, 2009.
Binomial tree, and all-to-all pair by pair: Thakur, Rabenseifner and Gropp, Int. J. High Performance
Computing Applications 19, 2005.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log2
from typing import NamedTuple

from bootcamp.costs.sharding import RING

RANKS = range(2, 9)


class Send(NamedTuple):
    """One rank sends one chunk to another, which adds it to its own or keeps it as it is."""

    source: int
    target: int
    chunk: Hashable
    adds: bool = False


@dataclass(frozen=True)
class Simulation:
    """What happened: moments[k] is the state after k steps, steps[k] leads from it to the next.

    A moment has for each rank {chunk: ranks whose contributions are in it}. chunks: how many of
    them make the whole tensor. Chunks of an all-to-all are named (rank it is from, rank it is for).
    """

    collective: str
    algorithm: str
    ranks: int
    chunks: int
    steps: list[list[Send]]
    moments: list[list[dict[Hashable, frozenset[int]]]]

    def sent(self, step: int) -> list[float]:
        """How much each rank has sent in the first `step` steps, in sizes of the whole tensor."""
        sources = [send.source for sends in self.steps[:step] for send in sends]
        return [sources.count(rank) / self.chunks for rank in range(self.ranks)]


def simulate(collective: str, algorithm: str, ranks: int) -> Simulation:
    """Carry out a collective. Raises ValueError for what is not in PLANS and RANKS."""
    if (collective, algorithm) not in PLANS:
        known = ", ".join(map(" by ".join, PLANS))
        raise ValueError(f"{collective} by {algorithm} is not simulated here, but {known} are")
    if ranks not in RANKS:
        raise ValueError(f"ranks={ranks}: expected {RANKS[0]} to {RANKS[-1]}")
    chunks = 1 if algorithm == "tree" else ranks
    steps = PLANS[collective, algorithm](ranks)
    moments = list(accumulate(steps, after, initial=start(collective, ranks, chunks)))
    return Simulation(collective, algorithm, ranks, chunks, steps, moments)


def start(collective: str, ranks: int, chunks: int) -> list[dict[Hashable, frozenset[int]]]:
    """What each rank holds before the first step."""
    begin = {
        "broadcast": lambda rank: range(chunks) if rank == 0 else (),
        "all-gather": lambda rank: (rank,),
        "all-to-all": lambda rank: ((rank, target) for target in range(ranks)),
    }.get(collective, lambda rank: range(chunks))
    return [{chunk: frozenset({rank}) for chunk in begin(rank)} for rank in range(ranks)]


def result(collective: str, ranks: int, chunks: int) -> list[dict[Hashable, frozenset[int]]]:
    """What each rank has asked for: the definition of the collective."""
    everyone = frozenset(range(ranks))
    asked = {
        "broadcast": lambda rank: {chunk: frozenset({0}) for chunk in range(chunks)},
        "all-reduce": lambda rank: dict.fromkeys(range(chunks), everyone),
        "reduce-scatter": lambda rank: {rank: everyone},
        "all-gather": lambda rank: {chunk: frozenset({chunk}) for chunk in range(chunks)},
        "all-to-all": lambda rank: {(source, rank): frozenset({source}) for source in everyone},
    }[collective]
    return [asked(rank) for rank in range(ranks)]


def after(held: list[dict], sends: list[Send]) -> list[dict]:
    """The state after one step: all send at once what they had before it.

    Raises ValueError where a rank sends a chunk that it lacks, or adds a contribution again.
    """
    later = [dict(chunks) for chunks in held]
    for source, target, chunk, adds in sends:
        if chunk not in held[source]:
            raise ValueError(f"rank {source} sends chunk {chunk}, which it does not have")
        carried = held[source][chunk]
        if adds and carried & later[target][chunk]:
            raise ValueError(f"rank {target} would add {set(carried)} to chunk {chunk} again")
        later[target][chunk] = carried | later[target][chunk] if adds else carried
    return later


def _collect_round(n: int) -> list[list[Send]]:
    """Each chunk goes once round and collects; chunk k starts behind rank k and ends at it."""
    return [
        [Send(rank, (rank + 1) % n, (rank - 1 - step) % n, adds=True) for rank in range(n)]
        for step in range(n - 1)
    ]


def _copy_round(n: int) -> list[list[Send]]:
    """Each chunk k starts at rank k and goes once round."""
    return [
        [Send(rank, (rank + 1) % n, (rank - step) % n) for rank in range(n)]
        for step in range(n - 1)
    ]


def _along_a_chain(n: int) -> list[list[Send]]:
    """A ring that is not closed: every rank passes on what came in the step before."""
    return [
        [Send(rank, rank + 1, step - rank) for rank in range(n - 1) if 0 <= step - rank < n]
        for step in range(2 * (n - 1))
    ]


def _down_a_tree(n: int) -> list[list[Send]]:
    """Binomial: in each round every rank that has the tensor gives it to one that lacks it."""
    distances = [2**power for power in reversed(range(ceil(log2(n))))]
    return [
        [Send(rank, rank + far, 0) for rank in range(0, n, 2 * far) if rank + far < n]
        for far in distances
    ]


def _up_a_tree(n: int) -> list[list[Send]]:
    """The same rounds backwards, added up on the way."""
    return [
        [Send(target, source, 0, adds=True) for source, target, *_ in sends]
        for sends in reversed(_down_a_tree(n))
    ]


def _pair_by_pair(n: int) -> list[list[Send]]:
    """In step s each rank sends to the one s further on, and so gets from the one s before it."""
    return [
        [Send(rank, (rank + step) % n, (rank, (rank + step) % n)) for rank in range(n)]
        for step in range(1, n)
    ]


PLANS = {  # the sends of each step, of so many ranks
    ("broadcast", "ring"): _along_a_chain,
    ("broadcast", "tree"): _down_a_tree,
    ("all-reduce", "ring"): lambda n: _collect_round(n) + _copy_round(n),
    ("all-reduce", "tree"): lambda n: _up_a_tree(n) + _down_a_tree(n),
    ("all-gather", "ring"): _copy_round,
    ("reduce-scatter", "ring"): _collect_round,
    ("all-to-all", "pairwise"): _pair_by_pair,
}


def formula(collective: str, algorithm: str, ranks: int) -> dict:
    """By formula: {"steps", "most", "total", "words"}.

    most: what the busiest rank sends, total: what all send together, in sizes of the whole tensor.
    words: {"steps", "most"} as the formulas are written.
    """
    both, others, most = collective == "all-reduce", ranks - 1, ceil(log2(ranks))
    if algorithm == "tree":
        steps, total = (1 + both) * most, (1 + both) * others
        words = f"{'2 ' * both}log₂N, rounded up", "log₂N, rounded up"
    elif collective == "broadcast":
        steps, most, total = 2 * others, 1, others
        words = "2(N-1)", "1"
    else:
        steps = total = RING[collective] * others
        most = total / ranks
        words = ("2(N-1)", "2(N-1)/N") if both else ("N-1", "(N-1)/N")
    words = dict(zip(("steps", "most"), words, strict=True))
    return {"steps": steps, "most": most, "total": total, "words": words}
