"""The planner's constants of software on a machine, fitted to published rows.

constants.toml says what each means and between which values it may be; fitted.json holds the values
that a tool found (logs/README.md has its commit), and the rows that they were fitted to.
"""

import json
import math
import tomllib
from collections import namedtuple
from pathlib import Path

from bootcamp.costs.hardware import gpu

HERE = Path(__file__).parent
_TOML = tomllib.loads((HERE / "constants.toml").read_text())
EXPLAINED = _TOML["constant"]  # {constant: {"default", "low", "high", "is"}}
# {stack: "tables", "constants" to fit, "published" ones, "anchors", "row": what rows leave blank}
STACKS = {name: {"published": {}, "anchors": []} | about for name, about in _TOML["stack"].items()}
FITTED = json.loads((HERE / "fitted.json").read_text())  # {stack: "constants", "rows", "anchors"}
# {"seen", "never seen": {most GPUs: how far four in five predictions are off at most, as a log}}
INTERVALS = json.loads((HERE / "intervals.json").read_text())
# one field for each constant of constants.toml; all seconds of a step are multiplied by the anchor,
# measured over predicted seconds of a table, 1.0 where it has none
Constants = namedtuple("Constants", [*(name for name in EXPLAINED if " " not in name), "anchor"])


def find_stack(name: str) -> str:
    """Return the stack that a table or a stack belongs to; "" for none. ValueError if unknown."""
    plain = name.removesuffix(".csv").lower()
    for stack, about in STACKS.items():
        if plain == stack or plain in about["tables"]:
            return stack
    if not plain:
        return ""
    raise ValueError(f"stack={name!r}: expected nothing or one of {', '.join(STACKS)}")


def find_constants(stack: str, gpu_name: str, method: str = "") -> Constants:
    """Return a stack's fitted constants, the rest by default.

    stack: a table's name or a stack's; empty for one never seen. method: the framework, or the
    convolutional network. A stack with fewer than four rows has an anchor in place of constants of
    its own. It borrows the others' medians, as does a stack never seen.
    """
    name = find_stack(stack)
    found = FITTED.get(name, {"constants": {}, "anchors": {}})
    borrowed = {} if found["constants"] else FITTED[""]["constants"]
    values = borrowed | (STACKS[name]["published"] if name else {}) | found["constants"]
    return select_constants(values, found["anchors"], stack, gpu_name, method)


def select_constants(
    values: dict, anchors: dict, stack: str, gpu_name: str, method: str
) -> Constants:
    """Choose those of a table, GPU ("matmul H100") and method ("network ZeRO-3")."""
    values = {name: about["default"] for name, about in EXPLAINED.items()} | values
    kinds, chosen = ("", gpu(gpu_name).kind, method), {"anchor": 1.0}
    for key in sorted(values, key=lambda key: " " in key):  # the special after the plain
        name, _, kind = key.partition(" ")
        if kind in kinds:
            chosen[name] = values[key]
    for key in anchor_keys(stack, gpu_name, method):
        chosen["anchor"] = anchors.get(key, chosen["anchor"])
    return Constants(**chosen)


def anchor_keys(stack: str, gpu_name: str, method: str) -> tuple[str, str, str]:
    """Return the names that an anchor of a table may have: its own, with its GPU, its method."""
    table = stack.removesuffix(".csv").lower()
    return table, f"{table} {gpu_name.split()[0]}", f"{table} {method.lower()}"


def interval(seconds: float, stack: str, gpus: int) -> tuple[float, float]:
    """Return between which seconds such a prediction's step lies, four times in five."""
    sizes = INTERVALS["seen" if FITTED.get(find_stack(stack)) and stack else "never seen"]
    off = next(each for most, each in sizes.items() if gpus <= float(most))
    return seconds * math.exp(-off), seconds * math.exp(off)
