"""Whether an exported model is the model: their scores, on shapes that were not exported.

    faithful.compare(artifacts.load("gpt.onnx"), artifacts.load("gpt.safetensors"), context=64)

An export is made with one example. What it fixes silently, a batch or a length, or a branch, shows
on other shapes alone; so several of both are compared, with other bytes in each sample, number by
number. Standard library and numpy only.
"""

import math
from collections.abc import Callable

import numpy

from bootcamp.costs.model_shapes import VOCABULARY

TOLERANCE = 1e-5  # of a score in float32: another order of additions stays far below it
BATCHES = (1, 3, 8)


def compare(
    exported: Callable, eager: Callable, context: int, batches: tuple[int, ...] = BATCHES
) -> list[dict]:
    """A row for each shape: `batch`, `length`, `difference` (the largest, of any score), `error`.

    exported, eager: as artifacts.load returns them. The difference is infinite where the exported
    model raises, or answers in another shape; `error` says what it did, else it is empty.
    """
    random, rows = numpy.random.default_rng(seed=0), []
    for batch in batches:
        for length in sorted({1, min(7, context), context}):
            ids = random.integers(VOCABULARY, size=(batch, length))
            difference, error = _difference(exported, eager(ids), ids)
            row = {"batch": batch, "length": length, "difference": difference, "error": error}
            rows.append(row)
    return rows


def _difference(exported: Callable, expected: numpy.ndarray, ids: numpy.ndarray):
    try:
        scores = exported(ids)
    except Exception as error:  # each runtime has kinds of its own
        said = str(error).strip().partition("\n")[0]
        return math.inf, f"{type(error).__name__}: {said}"
    if scores.shape != expected.shape:
        return math.inf, f"scores of shape {scores.shape}, not {expected.shape}"
    return float(numpy.abs(scores - expected).max()), ""


def furthest(rows: list[dict]) -> float:
    """The largest difference of all rows; infinite where one failed or is not a number."""
    found = [row["difference"] for row in rows]
    return math.inf if any(map(math.isnan, found)) else max(found)
