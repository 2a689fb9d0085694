"""Exercises of lesson 08b: what travels between ranks, and the way back of the rows."""

from bootcamp.classroom.tasks import FunctionTask, ScriptTask


def rows_between(counts):
    """How many rows each rank sends to each: [from][to]."""
    ranks = len(counts)
    each = len(counts[0]) // ranks
    return [[sum(line[k * each : (k + 1) * each]) for k in range(ranks)] for line in counts]


ROWS_BETWEEN = FunctionTask(
    hint="How many experts has a rank? Which part of a line of counts belongs to rank 0's experts?",
    stronger="each = len(counts[0]) // len(counts). The rows for rank k are those of the experts "
    "from k * each on: sum(line[k * each : (k + 1) * each]).",
    solved_by=rows_between,
    cases=(
        ([[1, 2, 3, 4], [5, 6, 7, 8]],),
        ([[4, 0, 1, 2, 0, 9], [3, 3, 3, 0, 5, 1], [1, 0, 0, 7, 2, 8]],),
        ([[6, 2]],),
        ([[1, 2], [3, 4]],),
        ([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 1, 2]],),
    ),
    mistakes={
        ("k * each : (k + 1) * each", "k::ranks"): "That deals the experts out like cards. A "
        "rank's experts are neighbours, so that the rows for it, sorted by expert, are too.",
        (
            lambda counts: [list(column) for column in zip(*rows_between(counts), strict=True)]
        ): "Those are the right numbers with sender and receiver swapped.",
        ("sum(line", "0 if line is counts[k] else sum(line"): "Rows for a rank's own experts go "
        "through the all-to-all as well: it wants a number for each rank, this one among them.",
        (lambda counts: [list(row) for row in counts]): "That has a number for each expert. The "
        "all-to-all wants one for each rank.",
    },
)

EXPERTS_OVER_RANKS = ScriptTask(
    "experts_over_ranks",
    task="The missing half: bring each result back to the rank of its token, and give\n"
    "the experts' gradients the scale of all others, after loss.backward().\n\n"
    "dispatch has left two lists in experts: `out`, how many rows this rank sent to each\n"
    "rank, and `back`, how many it got from each.\n",
    hint="What came in must go out, and the other way round. And which loss does a rank's backward "
    "pass begin with: that of its share, or that of the batch?",
    stronger="combine is the all_to_all of dispatch with the two lists swapped. An expert's "
    "gradient is the sum over all ranks' mean losses: divide it by the number of ranks.",
    solution="ep",
    takes_out=(
        "return all_to_all(results, experts.sent, experts.received, dist.group.WORLD)",
        "for parameter in mine.values():",
        "parameter.grad /= world",
    ),
    ranks=2,
    flags={"model": "moe"},
    errors={
        "Split sizes doesn't match": "What came to this rank goes out again now: the two lists of "
        "rows change places.",
        "expected to be specified": "all_to_all takes the tensor, the rows that come from each "
        "rank, the rows that go to each, and the group.",
    },
)
