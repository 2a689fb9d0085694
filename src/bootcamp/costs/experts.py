"""Costs of experts over ranks by formula: rows, bytes of the all-to-alls, memory of a rank.

A row is a token on its way to one of its experts. Each layer has two all-to-alls of rows in the
forward pass, there and back, and two of their gradients in the backward pass (GShard,
arXiv:2006.16668). Each rank has consecutive experts, as many as any other.
"""

from bootcamp.costs import model_shapes
from bootcamp.costs.model_shapes import FLOAT32_BYTES

COUNT_BYTES = 8  # ranks first tell each other, as integers, how many rows each expert gets
EXCHANGES = 4  # of rows, in a layer and step


def rows_bytes(tokens: float, width: int, chosen: int, number: int = FLOAT32_BYTES) -> float:
    """Return the bytes of the rows that a rank with `tokens` tokens hands to one all-to-all.

    On the way back a rank hands over what it was sent: the same in the mean over the ranks.
    """
    return tokens * chosen * width * number


def exchanged_bytes(shape: dict, tokens: float) -> float:
    """Return the bytes that a rank hands to all all-to-alls of a step, in the mean over the ranks.

    shape: of bootcamp.costs.model_shapes.MOE. tokens: of this rank. Of N ranks that are sent
    equally many rows, (N-1)/N of it leaves the rank.
    """
    rows = EXCHANGES * rows_bytes(tokens, shape["width"], shape["chosen"])
    return shape["layers"] * (rows + COUNT_BYTES * shape["experts"])  # and their numbers, ahead


def rows_between(counts: list[list[int]]) -> list[list[int]]:
    """Count the rows that each rank sends to each: [from][to]. counts: of each rank, by expert."""
    each = len(counts[0]) // len(counts)
    firsts = range(0, len(counts[0]), each)
    return [[sum(row[first : first + each]) for first in firsts] for row in counts]


def rows_of_ranks(counts: list[list[int]]) -> list[int]:
    """Count the rows that each rank computes. counts: as in rows_between."""
    return [sum(column) for column in zip(*rows_between(counts), strict=True)]


def sent_rows(counts: list[list[int]]) -> list[int]:
    """Count the rows that each rank sends to others in a layer's step, both ways and passes."""
    between, arriving = rows_between(counts), rows_of_ranks(counts)
    return [2 * (sum(out) + arriving[rank] - 2 * out[rank]) for rank, out in enumerate(between)]


def imbalance(rows: list[int]) -> float:
    """Divide the largest by the mean: 1 where all are equal, their number where one has all."""
    return max(rows) * len(rows) / sum(rows)


def parameter_bytes(size: str, ranks: int = 1) -> tuple[int, int]:
    """Return the bytes of a rank's (experts, all other parameters) of the model "moe"."""
    experts = sum(layer.of_experts for layer in model_shapes.layers("moe", size))
    others = model_shapes.parameters("moe", size) - experts
    return FLOAT32_BYTES * experts // ranks, FLOAT32_BYTES * others
