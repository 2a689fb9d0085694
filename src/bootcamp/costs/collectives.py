"""Collectives simulated step by step: `simulate("all-reduce", "ring", 4).moments[-1]`.

Ring: Patarasuk and Yuan, JPDC 69, 2009. Binomial tree, and all-to-all pair by pair: Thakur,
Rabenseifner and Gropp, Int. J. High Performance Computing Applications 19, 2005.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log2
from typing import NamedTuple

from bootcamp.costs.sharding import RING

RANKS = range(2, 9)
State = list[dict[Hashable, frozenset[int]]]  # of each rank {chunk: ranks that contributed to it}


class Send(NamedTuple):
    """One rank sends one chunk to another, which adds it to its own or keeps it as it is."""

    source: int
    target: int
    chunk: Hashable
    adds: bool = False


@dataclass(frozen=True)
class Simulation:
    """A simulated collective: moments[k] is the state after k steps, steps[k] leads to the next."""

    collective: str
    algorithm: str
    ranks: int
    chunks: int  # that make the tensor; an all-to-all's are named (rank from, rank for)
    steps: list[list[Send]]
    moments: list[State]

    def sent(self, step: int) -> list[float]:
        """Count what each rank has sent in the first `step` steps, in sizes of the whole tensor."""
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
    moments = accumulate(steps, apply_sends, initial=make_start(collective, ranks, chunks))
    return Simulation(collective, algorithm, ranks, chunks, steps, list(moments))


def make_start(collective: str, ranks: int, chunks: int) -> State:
    """Return what each rank holds before the first step: its own contributions."""
    begin = {
        "broadcast": lambda rank: range(chunks) if rank == 0 else (),
        "all-gather": lambda rank: (rank,),
        "all-to-all": lambda rank: ((rank, target) for target in range(ranks)),
    }.get(collective, lambda rank: range(chunks))
    return [dict.fromkeys(begin(rank), frozenset({rank})) for rank in range(ranks)]


def make_result(collective: str, ranks: int, chunks: int) -> State:
    """Return what each rank has to hold at the end: the definition of the collective."""
    everyone = frozenset(range(ranks))
    result = {
        "broadcast": lambda rank: {chunk: frozenset({0}) for chunk in range(chunks)},
        "all-reduce": lambda rank: dict.fromkeys(range(chunks), everyone),
        "reduce-scatter": lambda rank: {rank: everyone},
        "all-gather": lambda rank: {chunk: frozenset({chunk}) for chunk in range(chunks)},
        "all-to-all": lambda rank: {(source, rank): frozenset({source}) for source in everyone},
    }[collective]
    return [result(rank) for rank in range(ranks)]


def apply_sends(state: State, sends: list[Send]) -> State:
    """Return the state after one step, in which all send at once what they had before it.

    Raises ValueError where a rank sends a chunk that it lacks, or adds a contribution again.
    """
    later = [dict(chunks) for chunks in state]
    for source, target, chunk, adds in sends:
        if chunk not in state[source]:
            raise ValueError(f"rank {source} sends chunk {chunk}, which it does not have")
        carried = state[source][chunk]
        if adds and carried & later[target][chunk]:
            raise ValueError(f"rank {target} would add {set(carried)} to chunk {chunk} again")
        later[target][chunk] = carried | later[target][chunk] if adds else carried
    return later


def _send_round(n: int, adds: bool = False) -> list[list[Send]]:
    """Send each chunk k once round, from rank k; what adds begins behind rank k and ends at it."""
    return [
        [Send(rank, (rank + 1) % n, (rank - step - adds) % n, adds) for rank in range(n)]
        for step in range(n - 1)
    ]


def _pass_along_chain(n: int) -> list[list[Send]]:
    """Pass chunks along a ring that is not closed: each rank sends what came a step before."""
    return [
        [Send(rank, rank + 1, step - rank) for rank in range(n - 1) if 0 <= step - rank < n]
        for step in range(2 * (n - 1))
    ]


def _copy_down_tree(n: int) -> list[list[Send]]:
    """Copy in a binomial tree: in each round all that have the tensor give it to one more rank."""
    return [
        [Send(rank, rank + far, 0) for rank in range(0, n, 2 * far) if rank + far < n]
        for far in (2**power for power in reversed(range(ceil(log2(n)))))
    ]


def _add_up_tree(n: int) -> list[list[Send]]:
    """Run the same rounds backwards, and add on the way."""
    return [
        [Send(target, source, 0, adds=True) for source, target, *_ in sends]
        for sends in reversed(_copy_down_tree(n))
    ]


def _exchange_in_pairs(n: int) -> list[list[Send]]:
    """In step s, send to the rank s further on."""
    return [
        [Send(rank, (rank + step) % n, (rank, (rank + step) % n)) for rank in range(n)]
        for step in range(1, n)
    ]


PLANS = {  # the sends of each step, of so many ranks
    ("broadcast", "ring"): _pass_along_chain,
    ("broadcast", "tree"): _copy_down_tree,
    ("all-reduce", "ring"): lambda n: _send_round(n, adds=True) + _send_round(n),
    ("all-reduce", "tree"): lambda n: _add_up_tree(n) + _copy_down_tree(n),
    ("all-gather", "ring"): _send_round,
    ("reduce-scatter", "ring"): lambda n: _send_round(n, adds=True),
    ("all-to-all", "pairwise"): _exchange_in_pairs,
}


def formula(collective: str, algorithm: str, ranks: int) -> dict[str, tuple[str, float]]:
    """Return {"steps", "most" that a rank sends}: each formula as it is written, and its value."""
    both, others = collective == "all-reduce", ranks - 1
    if algorithm == "tree":
        rounds, words = ceil(log2(ranks)), "log₂N, rounded up"
        return {"steps": (f"{'2 ' * both}{words}", (1 + both) * rounds), "most": (words, rounds)}
    if collective == "broadcast":
        return {"steps": ("2(N-1)", 2 * others), "most": ("1", 1)}
    steps = RING[collective] * others
    most = "2(N-1)/N" if both else "(N-1)/N"
    return {"steps": ("2(N-1)" if both else "N-1", steps), "most": (most, steps / ranks)}
