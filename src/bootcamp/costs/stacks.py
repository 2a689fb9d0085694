"""What formulas cannot know: constants of software on a machine, fitted to published rows.

constants.toml says what each means and between which values it may be; fitted.json holds what
`python tools/accuracy.py --fit` found, from how many rows.
"""

import json
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bootcamp.costs import hardware

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
def explained() -> dict[str, dict]:
    """{constant: {"default", "low", "high", "is"}} of constants.toml."""
    return tomllib.loads((HERE / "constants.toml").read_text())["constant"]


@cache
def families() -> dict[str, dict]:
    """{stack: its tables, what its rows leave unsaid, and which constants are its own}."""
    return tomllib.loads((HERE / "constants.toml").read_text())["stack"]


@cache
def fitted() -> dict[str, dict]:
    """{stack: {"constants", "rows", "anchors"}} as fitted.json has them."""
    path = HERE / "fitted.json"
    return json.loads(path.read_text()) if path.exists() else {}


def family(stack: str) -> str:
    """The stack that a table or a stack belongs to; "" for none. Raises ValueError if unknown."""
    name = stack.strip().removesuffix(".csv").lower()
    if not name or name in families():
        return name
    for known, about in families().items():
        if name in about["tables"]:
            return known
    raise ValueError(f"stack={stack!r}: expected nothing or one of {', '.join(families())}")


def defaults(**others: float) -> Constants:
    """Constants of a stack never seen, or some of them replaced."""
    plain = {name: about for name, about in explained().items() if " " not in name}
    values = {name: about["default"] for name, about in plain.items()}
    return replace(Constants(**values), **others)


def row_defaults(stack: str) -> dict:
    """{column of rows.COLUMNS: value} for what a stack's rows leave blank."""
    return families().get(family(stack), {}).get("row", {})


def published_constants(stack: str) -> dict[str, float]:
    """Return what publications say of a stack's constants: nothing is fitted."""
    return families().get(stack, {}).get("published", {})


def constants(stack: str, gpu: str = "", method: str = "") -> Constants:
    """Return a stack's fitted constants, the rest by default.

    stack: a table's name or a stack's; empty for one never seen. gpu: its name, where a stack has
    constants for a kind of GPU ("matmul H100"). method: the framework, or the convolutional
    network. A table with fewer than four rows has no constant of its own, but an anchor: measured
    seconds over predicted ones. Such a table, and a stack never seen, borrow the others' medians.
    """
    name = family(stack)
    found = fitted().get(name, {})
    own, lent = found.get("constants"), fitted().get("", {}).get("constants", {})
    values = {**(published_constants(name) if own else lent), **(own or published_constants(name))}
    return select(values, found.get("anchors", {}), stack, gpu, method)


def select(values: dict, anchors: dict, stack: str, gpu: str = "", method: str = "") -> Constants:
    """Choose those of a table, GPU and method from {name: value} and {anchor: value}."""
    known, own, of_gpu = explained(), {}, hardware.kind(gpu)
    special = {key: about["default"] for key, about in known.items() if key.endswith(f" {method}")}
    pairs = {**special, **values}.items()
    for key, value in sorted(pairs, key=lambda pair: " " in pair[0]):  # the special after the plain
        name, _, kind = key.partition(" ")
        if name in known and (not kind or kind in (of_gpu, method)):
            own[name] = value
    near = [anchors[key] for key in anchor_keys(stack, gpu, method) if key in anchors]
    return defaults(**own, anchor=near[-1] if near else 1.0)


def anchor_keys(stack: str, gpu: str = "", method: str = "") -> tuple[str, str, str]:
    """What an anchor of a table may be called: by the table, its kind of GPU, or its method."""
    table = stack.strip().removesuffix(".csv").lower()
    return table, f"{table} {gpu.split()[0] if gpu else ''}", f"{table} {method.lower()}"
