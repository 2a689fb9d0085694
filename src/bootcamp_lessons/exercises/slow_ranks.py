"""Exercise of lesson 04d: which rank keeps the others waiting, with what, and for how long."""

from bootcamp.classroom.function_task import FunctionTask


def late_rank(ranks):
    """(rank that the others wait for, part in which it loses the time, milliseconds to be gained).

    ranks: a dictionary for each, with the milliseconds that it "computes", "waits" in collectives
    and does "neither" in a step. Gained: by a late rank that is as fast as the next slowest.
    """
    own = [rank["computes"] + rank["neither"] for rank in ranks]
    in_order = sorted(range(len(ranks)), key=own.__getitem__)
    late, next_slowest = in_order[-1], in_order[-2]

    def excess(part):
        return ranks[late][part] - ranks[next_slowest][part]

    part = "computes" if excess("computes") > excess("neither") else "neither"
    return late, part, own[late] - own[next_slowest]


def _by(key, ranks):
    return max(range(len(ranks)), key=lambda rank: key(ranks[rank]))


def _own(rank):
    return rank["computes"] + rank["neither"]


def _with(ranks, late=None, part=None, gained=None):
    """The right answer with a part of it replaced."""
    right = late_rank(ranks)
    return tuple(b if a is None else a for a, b in zip((late, part, gained), right, strict=True))


def _waits_most(ranks):
    late = _by(lambda rank: rank["waits"], ranks)
    return late, "waits", ranks[late]["waits"]


LATE_RANK = FunctionTask(
    hint="Who keeps the others waiting does not wait. What is left of its step when you take the "
    "waiting away, and how much of that is left on the others?",
    stronger="A rank's own time is computes + neither. The late rank has the largest, and the gain "
    "is the distance to the second largest. The part at fault is the one that exceeds that second "
    "rank's by more.",
    solved_by=late_rank,
    cases=(
        (
            [
                {"computes": 110.0, "waits": 80.0, "neither": 10.0},
                {"computes": 108.0, "waits": 82.0, "neither": 10.0},
                {"computes": 105.0, "waits": 6.0, "neither": 89.0},
                {"computes": 112.0, "waits": 77.0, "neither": 11.0},
            ],
        ),
        (
            [
                {"computes": 190.0, "waits": 5.0, "neither": 5.0},
                {"computes": 120.0, "waits": 75.0, "neither": 5.0},
                {"computes": 149.0, "waits": 45.0, "neither": 6.0},
            ],
        ),
        (
            [
                {"computes": 130.0, "waits": 70.0, "neither": 100.0},
                {"computes": 190.0, "waits": 8.0, "neither": 102.0},
            ],
        ),
    ),
    unit="(rank, part, ms)",
    mistakes={
        "That rank waits longest, so it is early. An all-reduce lasts until the last rank has "
        "come, and every rank but that one sees a slow network.": _waits_most,
        "The rank is the one that computes longest. Reading data, the garbage collector and other "
        'programs make a rank late too: add "neither".': lambda ranks: _with(
            ranks, late=_by(lambda rank: rank["computes"], ranks)
        ),
        "Rank and part are right. But the gain is not the longest waiting: when the late rank is "
        "cured, all still wait for the next slowest.": lambda ranks: _with(
            ranks,
            gained=max(rank["waits"] for rank in ranks) - min(rank["waits"] for rank in ranks),
        ),
        "Rank and part are right. The gain is only what its own time exceeds that of the next "
        "slowest rank by.": lambda ranks: _with(ranks, gained=max(map(_own, ranks))),
        "Rank and gain are right. The longer part need not be the one at fault: compare it with "
        "the same part of the others.": lambda ranks: _with(
            ranks, part=max(("computes", "neither"), key=ranks[late_rank(ranks)[0]].get)
        ),
        "Part and gain are right. Ranks count from 0, as places in a list do.": lambda ranks: _with(
            ranks, late=late_rank(ranks)[0] + 1
        ),
    },
)

TASKS = [LATE_RANK]
