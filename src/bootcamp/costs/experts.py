"""What experts over ranks cost by formula: rows, bytes of the all-to-alls, memory of a rank.

A row is a token on its way to one of its experts. Each layer has two all-to-alls of rows in the
forward pass, there and back, and two of their gradients in the backward pass (GShard,
arXiv:2006.16668). Each rank has consecutive experts, as many as any other.
"""

from bootcamp.costs import model_shapes
from bootcamp.costs.model_shapes import NUMBER

COUNT = 8  # bytes of a number of rows, which go ahead of the rows
EXCHANGES = 4  # of rows, in a layer and step


def rows_bytes(tokens: float, width: int, chosen: int, number: int = NUMBER) -> float:
    """Bytes of the rows that a rank with `tokens` tokens hands to one all-to-all.

    Exactly so on the way there. On the way back a rank hands over what it was sent: the same in the
    mean over the ranks, whatever the routers do.
    """
    return tokens * chosen * width * number


def exchanged_bytes(shape: dict, tokens: float) -> float:
    """Bytes that a rank hands to all all-to-alls of a step, in the mean over the ranks.

    shape: of bootcamp.costs.model_shapes.MOE. tokens: of this rank. Of N ranks that are sent
    equally many rows, (N-1)/N of it leaves the rank.
    """
    rows = EXCHANGES * rows_bytes(tokens, shape["width"], shape["chosen"])
    return shape["layers"] * (rows + COUNT * shape["experts"])  # and their numbers, ahead


def rows_between(counts: list[list[int]]) -> list[list[int]]:
    """How many rows each rank sends to each, those that stay among them: [from][to].

    counts: for each rank, how many rows its tokens have for each expert.
    """
    each = len(counts[0]) // len(counts)
    firsts = range(0, len(counts[0]), each)
    return [[sum(row[first : first + each]) for first in firsts] for row in counts]


def rows_of_ranks(counts: list[list[int]]) -> list[int]:
    """How many rows each rank computes. counts: as in rows_between."""
    return [sum(column) for column in zip(*rows_between(counts), strict=True)]


def sent_rows(counts: list[list[int]]) -> list[int]:
    """How many rows each rank sends to others in a layer's step, both directions and passes."""
    between = rows_between(counts)
    arriving = rows_of_ranks(counts)
    return [2 * (sum(out) + arriving[rank] - 2 * out[rank]) for rank, out in enumerate(between)]


def imbalance(rows: list[int]) -> float:
    """The largest share over the mean: 1 where all are equal, their number where one has all."""
    return max(rows) * len(rows) / sum(rows)


def parameter_bytes(size: str, ranks: int = 1) -> tuple[int, int]:
    """Bytes of a rank's (experts, all other parameters) of the model "moe"."""
    experts = sum(layer.of_experts for layer in model_shapes.layers("moe", size))
    return NUMBER * experts // ranks, NUMBER * (model_shapes.parameters("moe", size) - experts)
