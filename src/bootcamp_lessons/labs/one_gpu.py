"""Tables of what one real GPU measured, where tools/gpu_record.py has recorded it."""

from pathlib import Path

from bootcamp.experiments import replay
from bootcamp.paths import REFERENCE
from bootcamp.table import Table
from bootcamp.units import size

SPEED = {
    "batch": "batch",
    "tokens per second": lambda row: round(row["tokens_per_second"]),
    "MFU": lambda row: "-" if row["mfu"] is None else f"{row['mfu']:.0%}",
}


def batches(reference: Path = REFERENCE) -> Table:
    """GPT-2 small in bf16, batches twice as large each time, up to the one that did not fit."""
    part = replay.gpu_part("speed_small", reference)
    found = part["batches"] or {"rows": []}
    fits = {**SPEED, "peak": lambda row: size(row["peak_bytes"]), "ended": lambda row: "trained"}
    rows = Table.of(found["rows"], fits).rows
    if rows:
        rows.append({"batch": found["out of memory"]["batch"], "ended": "out of memory"})
    return part.table("batches", rows)


def waiting(reference: Path = REFERENCE) -> Table:
    """A step as the CPU's clock and CUDA events time it, read without and with waiting."""
    part = replay.gpu_part("speed_small", reference)
    found = part["asynchronous"] or {}
    read = {"when the calls returned": "returned", "after synchronize()": "synchronised"}
    rows = [
        {
            "clock read": when,
            "ms by the CPU's clock": 1e3 * found[f"{name}_seconds"],
            "ms by CUDA events": 1e3 * found[f"event_seconds, {name}"],
        }
        for when, name in read.items()
        if found
    ]
    return part.table("asynchronous", rows)


def ways(reference: Path = REFERENCE) -> Table:
    """GPT-2 small: number formats, recomputing, compiling, and what each keeps in memory."""
    part = replay.gpu_part("speed_small", reference)
    kept = ("optimizer", "activation", "peak")
    sizes = {kind: lambda row, kind=kind: size(row[f"{kind}_bytes"]) for kind in kept}
    return part.table("ways", Table.of(part["ways"] or [], {"way": "way", **SPEED, **sizes}).rows)
