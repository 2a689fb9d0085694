"""Whether an exported model is the model: their scores, on shapes that were not exported.

    faithful.compare(artifacts.load("gpt.onnx"), artifacts.load("gpt.safetensors"), context=64)

An export is made with one example. What it fixes silently, a batch or a length, or a branch, shows
on other shapes alone; so several of both are compared, with other bytes in each sample, number by
number.
"""

import itertools
import math
from collections.abc import Callable

import numpy

from bootcamp.costs.model_shapes import VOCABULARY

TOLERANCE = 1e-5  # of a score in float32: another order of additions stays far below it
BATCHES = (1, 3, 8)


def compare(exported: Callable, eager: Callable, context: int) -> list[dict]:
    """Make a row for each shape: `batch`, `length`, and the largest `difference` of any score.

    exported, eager: as artifacts.load returns them. Where the exported model raises, or answers in
    another shape or not in numbers, the difference is infinite.
    """
    random, rows = numpy.random.default_rng(seed=0), []
    for batch, length in itertools.product(BATCHES, sorted({1, min(7, context), context})):
        ids = random.integers(VOCABULARY, size=(batch, length))
        expected = eager(ids)
        try:
            difference = apart(exported(ids), expected)
        except Exception:  # each runtime has kinds of its own
            difference = math.inf
        rows.append({"batch": batch, "length": length, "difference": difference})
    return rows


def apart(found: numpy.ndarray, expected: numpy.ndarray) -> float:
    """Return the largest difference of a score; infinite for another shape, or for no number."""
    if found.shape != expected.shape:
        return math.inf
    difference = float(numpy.abs(found - expected).max())
    return math.inf if math.isnan(difference) else difference


def furthest(rows: list[dict]) -> float:
    """Return the largest difference of all rows."""
    return max(row["difference"] for row in rows)
