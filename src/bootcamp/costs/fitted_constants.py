"""The planner's constants: constants.toml explains them, fitted.json holds the fitted ones."""

import json
import math
import tomllib
from collections import namedtuple
from functools import cache
from pathlib import Path

from bootcamp.costs.hardware import gpu

HERE = Path(__file__).parent
_TOML = tomllib.loads((HERE / "constants.toml").read_text())
EXPLAINED = _TOML["constant"]  # {constant: {"default", "low", "high", "is"}}
SHARED = _TOML["shared"]  # the constants that are fitted to all stacks together
# {stack: "tables", "constants" to fit to it alone, "row": what rows leave blank}
STACKS = {name: {"constants": []} | about for name, about in _TOML["stack"].items()}
OF_TABLE = {"": ""} | {t: name for name in STACKS for t in (name, *STACKS[name]["tables"])}
UNSEEN = "never seen"  # what a stack that is not in FITTED is called
FITTED = json.loads((HERE / "fitted.json").read_text())  # {stack, or "": {constant: value}}
# {"seen", UNSEEN: {most GPUs: how far four in five predictions are off at most, as a log}}
INTERVALS = json.loads((HERE / "intervals.json").read_text())
# one field for each constant of constants.toml
Constants = namedtuple("Constants", [name for name in EXPLAINED if " " not in name])


def find_stack(name: str) -> str:
    """Return the stack that a table or a stack belongs to; "" for none. ValueError if unknown."""
    plain = name.removesuffix(".csv").lower()
    if plain not in OF_TABLE:
        raise ValueError(f"stack={name!r}: expected nothing or one of {', '.join(STACKS)}")
    return OF_TABLE[plain]


@cache
def find_constants(stack: str, gpu_name: str, method: str = "") -> Constants:
    """Return a stack's constants: its own, and the rest of all stacks."""
    return select_constants(FITTED, find_stack(stack), gpu_name, method)


def select_constants(fitted: dict, stack: str, gpu_name: str, method: str) -> Constants:
    """Choose from what is as FITTED for a stack, a GPU ("matmul H100"), a method ("ZeRO-3")."""
    values = {n: a["default"] for n, a in EXPLAINED.items()} | fitted[""] | fitted.get(stack, {})
    kinds, chosen = ("", gpu(gpu_name).kind, method), {}
    for key in sorted(values, key=lambda key: " " in key):  # the special after the plain
        name, _, kind = key.partition(" ")
        if kind in kinds:
            chosen[name] = values[key]
    return Constants(**chosen)


def interval(seconds: float, stack: str, gpus: int) -> tuple[float, float]:
    """Return between which seconds such a prediction's step lies, four times in five."""
    sizes = INTERVALS["seen" if stack and find_stack(stack) in FITTED else UNSEEN]
    off = next(each for most, each in sizes.items() if gpus <= float(most))
    return seconds * math.exp(-off), seconds * math.exp(off)
