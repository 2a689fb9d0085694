"""Exercises of lesson 11 that are a function in a cell."""

import math

from bootcamp.classroom.function_task import FunctionTask


def requests_that_fit(gpu_gb, billions, layers, heads, kv_heads, head_width, length):
    """How many requests of this length fit beside the weights; every number has 16 bits."""
    left = 1e9 * (gpu_gb - 2 * billions)
    request = 2 * layers * kv_heads * head_width * 2 * length
    return max(0, int(left // request))


def _exact(gpu_gb, billions, layers, heads, kv_heads, head_width, length, **wrong):
    """As requests_that_fit, not rounded, with a mistake."""
    left = wrong.get("gb", 1e9) * gpu_gb - 1e9 * wrong.get("weight_bytes", 2) * billions
    kept_heads = heads if wrong.get("query_heads") else kv_heads
    return left / (layers * kept_heads * head_width * length * wrong.get("request_bytes", 4))


def _mistaken(**wrong):
    return lambda *case: max(0, int(_exact(*case, **wrong)))


FIT = FunctionTask(
    hint="How many bytes are left beside the weights? How many numbers are kept for one token?",
    stronger="Left are 1e9 * (gpu_gb - 2 * billions) bytes. A token keeps a key and a value in "
    "every layer, for each of the kv_heads: 2 * layers * kv_heads * head_width numbers of 2 bytes. "
    "Round down, and give 0 rather than less.",
    solved_by=requests_that_fit,
    cases=(
        (80, 8, 32, 32, 8, 128, 8192),
        (80, 8, 32, 32, 8, 128, 131072),
        (80, 7.5, 36, 32, 32, 128, 2048),
        (24, 1.5, 48, 25, 25, 64, 1024),
        (80, 70, 80, 64, 8, 128, 8192),
        (160, 70, 80, 64, 8, 128, 8192),
    ),
    unit="requests",
    mistakes={
        "The weights are on the GPU too: 2 bytes for each parameter.": _mistaken(weight_bytes=0),
        "The weights have 2 bytes for each parameter: a billion of them is 2 GB.": _mistaken(
            weight_bytes=1
        ),
        "That keeps keys or values. A token leaves both, in every layer.": _mistaken(
            request_bytes=2
        ),
        "That keeps keys and values for every query head. Heads of queries that share them need "
        "them once: count kv_heads.": _mistaken(query_heads=True),
        "A number of 16 bits has 2 bytes: your requests are eight times too large.": _mistaken(
            request_bytes=32
        ),
        "A number of 16 bits has 2 bytes: your weights and requests are eight times too "
        "large.": _mistaken(weight_bytes=16, request_bytes=32),
        "A GB is 10^9 bytes here, as GPUs are sold. 2^30 bytes are a GiB.": _mistaken(gb=2**30),
        "Where the weights alone are too large, no request fits: 0, not less.": lambda *case: (
            math.floor(_exact(*case))
        ),
        "A part of a request is none: round down, to a whole number.": lambda *case: max(
            0, _exact(*case)
        ),
    },
)

TASKS = [FIT]
