"""What experts over ranks cost by formula: rows, bytes of the all-to-alls, memory of a rank.

A row is a token on its way to one of its experts. Each layer has two all-to-alls of rows in the
forward pass, there and back, and two of their gradients in the backward pass (GShard,
arXiv:2006.16668). Each rank has consecutive experts, as many as any other. Standard library only.
"""

from bootcamp.theory import model_shapes

NUMBER = 4  # bytes in float32
COUNT = 8  # bytes of a number of rows, which go ahead of the rows
EXCHANGES = 4  # of rows, in a layer and step


def rows_bytes(tokens: float, width: int, chosen: int, number: int = NUMBER) -> float:
    """Bytes of the rows that a rank with `tokens` tokens hands to one all-to-all.

    Exactly so on the way there. On the way back a rank hands over what it was sent: the same in the
    mean over the ranks, whatever the routers do.
    """
    return tokens * chosen * width * number


def exchanged_bytes(shape: dict, tokens: float, sizes: bool = True) -> float:
    """Bytes that a rank hands to all all-to-alls of a step, in the mean over the ranks.

    shape: of bootcamp.theory.model_shapes.MOE. tokens: of this rank. Of N ranks that are sent
    equally many rows, (N-1)/N of it leaves the rank. sizes: with the numbers of rows.
    """
    rows = EXCHANGES * rows_bytes(tokens, shape["width"], shape["chosen"])
    return shape["layers"] * (rows + sizes * COUNT * shape["experts"])


def rows_of_ranks(counts: list[list[int]]) -> list[int]:
    """How many rows each rank computes. counts: for each rank, its tokens' rows for each expert."""
    each = len(counts[0]) // len(counts)
    total = [sum(column) for column in zip(*counts, strict=True)]
    return [sum(total[first : first + each]) for first in range(0, len(total), each)]


def sent_rows(counts: list[list[int]]) -> list[int]:
    """How many rows each rank sends to others in one layer's step, in both directions and passes.

    Its own rows go there and their gradients too; the results of others' rows and their gradients
    come back from it.
    """
    each, ranks = len(counts[0]) // len(counts), range(len(counts))
    to = [[sum(row[first * each : (first + 1) * each]) for first in ranks] for row in counts]
    out = [sum(to[rank]) - to[rank][rank] for rank in ranks]
    arriving = [sum(row[rank] for row in to) - to[rank][rank] for rank in ranks]
    return [2 * (a + b) for a, b in zip(out, arriving, strict=True)]


def imbalance(rows: list[int]) -> float:
    """The largest share over the mean: 1 where all are equal, their number where one has all."""
    return max(rows) * len(rows) / sum(rows)


def parameter_bytes(size: str, ranks: int = 1) -> tuple[int, int]:
    """Bytes of a rank's (experts, all other parameters) of the model "moe"."""
    shape = model_shapes.MOE[size]
    numbers = sum(sum(layer.numbers) for layer in model_shapes.layers("moe", size))
    expert = 2 * shape["width"] * model_shapes.expert_width(shape["width"], shape["chosen"])
    experts = shape["layers"] * shape["experts"] * expert
    return NUMBER * experts // ranks, NUMBER * (numbers - experts)
