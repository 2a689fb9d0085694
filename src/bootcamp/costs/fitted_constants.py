"""What formulas cannot know: constants of software on a machine, fitted to published rows.

constants.toml says what each means and between which values it may be; fitted.json holds what
`python tools/accuracy.py --fit` found, from how many rows.
"""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bootcamp.costs.hardware import gpu

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Constants:
    """Shares of what hardware promises, and seconds; constants.toml explains each."""

    matmul: float
    memory: float
    attention: float
    fp8: float
    launch: float
    ends: float
    bus: float
    network: float
    filling: float
    hop: float
    fixed: float
    reserved: float
    images: float
    clock: float
    anchor: float = 1.0


@cache
def _toml() -> dict[str, dict]:
    return tomllib.loads((HERE / "constants.toml").read_text())


def explained() -> dict[str, dict]:
    """{constant: {"default", "low", "high", "is"}} of constants.toml."""
    return _toml()["constant"]


def families() -> dict[str, dict]:
    """{stack: its tables, what its rows leave unsaid, and which constants are its own}."""
    return _toml()["stack"]


@cache
def fitted() -> dict[str, dict]:
    """{stack: {"constants", "rows", "anchors"}} as fitted.json has them."""
    return json.loads((HERE / "fitted.json").read_text())


def family(stack: str) -> str:
    """The stack that a table or a stack belongs to; "" for none. Raises ValueError if unknown."""
    name = stack.removesuffix(".csv").lower()
    if not name or name in families():
        return name
    for known, about in families().items():
        if name in about["tables"]:
            return known
    raise ValueError(f"stack={stack!r}: expected nothing or one of {', '.join(families())}")


def published_constants(stack: str) -> dict[str, float]:
    """Return what publications say of a stack's constants: nothing is fitted."""
    return families().get(stack, {}).get("published", {})


def constants(stack: str, gpu_name: str, method: str = "") -> Constants:
    """Return a stack's fitted constants, the rest by default.

    stack: a table's name or a stack's; empty for one never seen. gpu_name: a stack may have
    constants for a kind of GPU ("matmul H100"). method: the framework, or the convolutional
    network. A table with fewer than four rows has no constant of its own, but an anchor: measured
    seconds over predicted ones. Such a table, and a stack never seen, borrow the others' medians.
    """
    name = family(stack)
    found = fitted().get(name, {})
    own = found.get("constants") or fitted()[""]["constants"] | published_constants(name)
    values = published_constants(name) | own
    return select(values, found.get("anchors", {}), stack, gpu_name, method)


def select(values: dict, anchors: dict, stack: str, gpu_name: str, method: str) -> Constants:
    """Choose those of a table, GPU and method from {name: value} and {anchor: value}."""
    values = {name: about["default"] for name, about in explained().items()} | values
    kinds, chosen = ("", gpu(gpu_name).kind, method), {}
    for key in sorted(values, key=lambda key: " " in key):  # the special after the plain
        name, _, kind = key.partition(" ")
        if kind in kinds:
            chosen[name] = values[key]
    near = [anchors[key] for key in anchor_keys(stack, gpu_name, method) if key in anchors]
    return Constants(**chosen, anchor=near[-1] if near else 1.0)


def anchor_keys(stack: str, gpu_name: str, method: str) -> tuple[str, str, str]:
    """What an anchor of a table may be called: by the table, its kind of GPU, or its method."""
    table = stack.removesuffix(".csv").lower()
    return table, f"{table} {gpu_name.split()[0]}", f"{table} {method.lower()}"
