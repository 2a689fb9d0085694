"""Exercise of lesson 06c on texts that are split over ranks."""

from bootcamp.classroom.function_task import FunctionTask


def cheapest_way(tokens, heads, key_heads, of_head, ranks, room):
    """The way of context parallelism that sends fewest numbers, of those that are possible.

    theory.context has the bytes. Gathered keys and values need room for all of them.
    """
    keys = 2 * tokens * key_heads * of_head
    return _least(_sends(keys, 2 * tokens * heads * of_head, ranks), keys <= room, key_heads, ranks)


def _sends(keys, both, ranks):
    """Numbers that a rank sends in a step. keys: and values; both: queries and outputs."""
    others = (ranks - 1) / ranks
    ulysses = 2 * others * (both + keys) / ranks
    return {"all-gather": 2 * others * keys, "ring": (2 * others + 1) * keys, "ulysses": ulysses}


def _least(sends, fits, key_heads, ranks):
    possible = {"all-gather": fits, "ring": True, "ulysses": key_heads % ranks == 0}
    return min((way for way in sends if possible[way]), key=sends.get)


def _without_the_heads(tokens, heads, key_heads, of_head, ranks, room):
    keys = 2 * tokens * key_heads * of_head
    return _least(_sends(keys, 2 * tokens * heads * of_head, ranks), keys <= room, ranks, ranks)


def _without_groups(tokens, heads, key_heads, of_head, ranks, room):
    keys = 2 * tokens * heads * of_head
    return _least(_sends(keys, keys, ranks), keys <= room, key_heads, ranks)


WAY = FunctionTask(
    hint="Call keys what keys and values have together, 2 x tokens x key_heads x of_head. Who "
    "sends (ranks - 1) / ranks of them, how often? And what else travels in ulysses?",
    stronger="all-gather: 2 (n-1)/n keys. ring: one keys more. ulysses: 2 (n-1)/n (queries + "
    "outputs + keys) / n, with tokens x heads x of_head each for queries and for outputs. Leave "
    "out what is not possible, and take the smallest.",
    solved_by=cheapest_way,
    cases=(
        (8192, 16, 8, 128, 2, 1e9),
        (8192, 32, 32, 128, 8, 1e9),
        (8192, 32, 8, 128, 4, 1e9),
        (8192, 32, 8, 128, 8, 1e9),
        (8192, 64, 8, 128, 16, 1e9),
        (1 << 20, 64, 8, 128, 16, 1e9),
        (1 << 20, 64, 8, 128, 4, 1e9),
        (1 << 20, 32, 32, 128, 8, 1e9),
    ),
    mistakes={
        "That takes ulysses where the key-value heads do not divide over the ranks. "
        "Each rank needs complete heads.": _without_the_heads,
        "That gathers keys and values for which a rank has no room.": {"room": float("inf")},
        "That gives each head of queries keys of its own. With grouped-query attention there are "
        "fewer: key_heads.": _without_groups,
        "In ulysses queries and outputs travel too, not keys and values alone.": {"heads": 0},
    },
)

TASKS = [WAY]
