"""The planner's constants of software on a machine, fitted to published rows.

constants.toml says what each means and between which values it may be, fitted.json holds them.
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
OF_TABLE = {"": ""} | {t: name for name in STACKS for t in (name, *STACKS[name]["tables"])}
FITTED = json.loads((HERE / "fitted.json").read_text())  # {stack: "constants", "rows", "anchors"}
# {"seen", "never seen": {most GPUs: how far four in five predictions are off at most, as a log}}
INTERVALS = json.loads((HERE / "intervals.json").read_text())
# one field for each constant of constants.toml; all seconds of a step are multiplied by the anchor,
# measured over predicted seconds of a table, 1.0 where it has none
Constants = namedtuple("Constants", [*(name for name in EXPLAINED if " " not in name), "anchor"])


def find_stack(name: str) -> str:
    """Return the stack that a table or a stack belongs to; "" for none. ValueError if unknown."""
    plain = name.removesuffix(".csv").lower()
    if plain not in OF_TABLE:
        raise ValueError(f"stack={name!r}: expected nothing or one of {', '.join(STACKS)}")
    return OF_TABLE[plain]


def find_constants(stack: str, gpu_name: str, method: str = "") -> Constants:
    """Return a stack's fitted constants; one of few rows, or never seen, borrows the others'."""
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
    table = stack.removesuffix(".csv").lower()  # an anchor may be of its GPU or method alone
    for key in (table, f"{table} {gpu_name.split()[0]}", f"{table} {method.lower()}"):
        chosen["anchor"] = anchors.get(key, chosen["anchor"])
    return Constants(**chosen)


def interval(seconds: float, stack: str, gpus: int) -> tuple[float, float]:
    """Return between which seconds such a prediction's step lies, four times in five."""
    sizes = INTERVALS["seen" if FITTED.get(find_stack(stack)) and stack else "never seen"]
    off = next(each for most, each in sizes.items() if gpus <= float(most))
    return seconds * math.exp(-off), seconds * math.exp(off)
