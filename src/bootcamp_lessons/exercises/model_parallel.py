"""Exercises of lessons 06 to 06d that are a function: cuts, schedules, split weights, context."""

from bootcamp.classroom.tasks import FunctionTask


@FunctionTask.from_solution(
    hint="Add up what a layer holds, state and activations. Then try each cut's fuller device.",
    stronger="A layer holds 16 * parameters + activations. For each cut from 1 to len - 1 take "
    "max(sum(held[:cut]), sum(held[cut:])); the answer is the cut for which that is smallest.",
    cases=(
        ([5, 1, 1, 1, 1, 3], [0, 40, 40, 40, 40, 90]),
        ([1, 1, 1, 1, 9], [10, 10, 10, 10, 10]),
        ([1, 1, 7, 8, 9], [90, 160, 190, 40, 0]),
        ([1, 2, 2, 1, 1], [90, 8, 8, 8, 8]),
        ([8, 1, 1, 1], [0, 30, 30, 30]),
    ),
    mistakes={
        (lambda parameters, activation_bytes: len(parameters) // 2): "That is the middle. Half of "
        "the layers are not half of the bytes: count what each layer holds.",
        ("16 * count + kept", "count"): "That cut balances the parameters alone. The activations "
        "are held too, and the layer with most parameters is not that with most activations.",
        ("16 * count + kept", "kept"): "That balances activations alone: the state is held too.",
        ("16 * count", "4 * count"): "Gradient and AdamW's two averages come on top: 16 together.",
        ("return min(", "return -1 + min("): "That is the last layer of device 0. Asked for is the "
        "first one of device 1, counted from 0 as in model[cut:].",
        ("max(sum(held[:cut]), sum(held[cut:]))", "2 * sum(held[:cut]) < sum(held)"): "That fills "
        "device 0 until it holds half of everything. The layer that crosses the half may be better "
        "on the other side: compare both.",
    },
)
def where_to_cut(parameters, activation_bytes):
    """The first layer of device 1, so that the fuller of two devices holds as little as possible.

    Numbers by layer. AdamW in float32: 4 bytes for a parameter, 4 for its gradient, 8 for AdamW.
    """
    held = [16 * count + kept for count, kept in zip(parameters, activation_bytes, strict=True)]
    cuts = range(1, len(held))  # each device gets a layer
    return min(cuts, key=lambda cut: max(sum(held[:cut]), sum(held[cut:])))


@FunctionTask.from_solution(
    hint="The last rank does a backward after each forward; the one before needs one forward more.",
    stronger="A rank begins with ranks - 1 - rank forwards. Then it does a forward and a backward "
    "in turn, both in the order of the micro-batches, until no forward is left; then the rest.",
    cases=((1, 2, 3), (0, 2, 3), (0, 4, 6), (2, 4, 6)),
    mistakes={
        ("ranks - 1 - rank", "micro_batches"): "That is GPipe: all forwards, then all backwards. "
        "It holds every micro-batch at once. Under 1F1B a rank begins backwards as soon as it can.",
        ("ranks - 1 - rank", "0"): "Only the last rank can do so. On any other the first backward "
        "waits for the ranks below, and meanwhile they need the next micro-batches.",
        ("ranks - 1 - rank", "ranks - 1"): "That begins on all ranks as on rank 0. A later rank "
        "has fewer ranks below it, so its first backward can come sooner.",
        ("ranks - 1 - rank", "rank"): "The forwards ahead are counted from the wrong end: rank 0 "
        "is the furthest from the loss, so it has the most.",
        ("ranks - 1 - rank", "ranks - rank"): "There is one forward too many at the start: the "
        "rank would hold one micro-batch more than there are ranks from it to the end.",
        (
            "B{i - ahead}",
            "B{i}",
            "in range(micro_batches - ahead, micro_batches)",
            "in reversed(range(ahead))",
        ): "The newest micro-batch comes first here. The oldest one's gradient arrives first.",
    },
)
def order_of_rank(rank, ranks, micro_batches):
    """What a rank does in a step under 1F1B: F0 is micro-batch 0's forward, B0 its backward."""
    ahead = ranks - 1 - rank  # one forward for each rank below, so that all of them get work
    order = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, micro_batches):
        order += [f"F{i}", f"B{i - ahead}"]
    return order + [f"B{i}" for i in range(micro_batches - ahead, micro_batches)]


@FunctionTask.from_solution(
    hint="Which weights are split by columns, which by rows? nn.Linear stores A transposed.",
    stronger="query, key, value and up give each rank some of the outputs, which are the rows of "
    "the stored weight. out and down give it some of the inputs: the columns.",
    cases=(
        ("up", (256, 64), 1, 2),
        ("down", (64, 256), 1, 2),
        ("query", (64, 64), 3, 4),
        ("out", (64, 64), 1, 4),
    ),
    mistakes={
        (lambda name, shape, *which: part_of_rank(name, shape[::-1], *which)[::-1]): "Rows and "
        "columns have changed places. nn.Linear computes x @ weight.T: A's column is a stored row.",
        ('in ("query", "key", "value", "up")', ""): "That splits all weights by their outputs. out "
        "and down read what such a split has left on each rank: they are split by their inputs.",
        ("(rank * columns, (rank + 1) * columns)", "(0, inputs)"): "out and down are whole here. "
        "Each rank has a part of their input only, so it needs only that part of the weight.",
        ("(rank + 1) * rows", "rows", "(rank + 1) * columns", "columns"): "The second number of "
        "each pair is to be the end, as in a slice, not how many.",
        (
            lambda *given: tuple((a, b - 1) for a, b in part_of_rank(*given))
        ): "The second number of each pair is to be the end, which is excluded as in a slice.",
    },
)
def part_of_rank(name, shape, rank, ranks):
    """The ((first row, end), (first column, end)) of a stored weight that a rank holds.

    shape: (outputs, inputs), as nn.Linear stores it. So a split by columns of x @ A takes rows.
    """
    outputs, inputs = shape
    if name in ("query", "key", "value", "up"):  # split by columns: each rank has some outputs
        rows = outputs // ranks
        return (rank * rows, (rank + 1) * rows), (0, inputs)
    columns = inputs // ranks  # out and down, by rows: each rank reads some inputs
    return (0, outputs), (rank * columns, (rank + 1) * columns)


@FunctionTask.from_solution(
    hint="Call keys what keys and values have together, 2 x tokens x key_heads x of_head. Who "
    "sends (ranks - 1) / ranks of them, how often? And what else travels in ulysses?",
    stronger="all-gather: 2 (n-1)/n keys. ring: one keys more. ulysses: 2 (n-1)/n (queries + "
    "outputs + keys) / n, with tokens x heads x of_head each for queries and for outputs. Leave "
    "out what is not possible, and take the smallest.",
    cases=(
        (8192, 16, 8, 128, 2, 1e9),
        (8192, 32, 32, 128, 8, 1e9),
        (8192, 32, 8, 128, 4, 1e9),
        (8192, 32, 8, 128, 8, 1e9),
        (8192, 64, 8, 128, 16, 1e9),
        (1 << 20, 64, 8, 128, 16, 1.5e9),
        (1 << 20, 64, 8, 128, 4, 1e9),
        (1 << 20, 32, 32, 128, 8, 1e9),
    ),
    mistakes={
        ("key_heads % ranks", "0"): "In ulysses each rank needs complete key-value heads.",
        ("keys <= room", "True"): "That gathers keys and values for which a rank has no room.",
        ("tokens * key_heads", "tokens * heads"): "That gives each head of queries keys of its "
        "own. With grouped-query attention there are fewer: key_heads.",
        ("(queries + keys)", "keys"): "In ulysses queries and outputs travel too.",
    },
)
def cheapest_way(tokens, heads, key_heads, of_head, ranks, room):
    """The way of context parallelism that sends fewest numbers, of those that are possible.

    traffic.context_bytes has the bytes. Gathered keys and values need room for all of them.
    """
    keys = 2 * tokens * key_heads * of_head  # and values
    others = (ranks - 1) / ranks
    sends = {"ring": (2 * others + 1) * keys}
    if keys <= room:
        sends["all-gather"] = 2 * others * keys
    if key_heads % ranks == 0:
        queries = 2 * tokens * heads * of_head  # and outputs
        sends["ulysses"] = 2 * others * (queries + keys) / ranks
    return min(sends, key=sends.get)
