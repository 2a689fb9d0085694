"""Lesson 08c: what each rank of three axes holds and sends, by formula and as recorded.

A mesh is {axis: ranks along it}, as a run's record has it, with the tiny GPT on it.
"""

from bootcamp.costs import memory, setting, traffic
from bootcamp.records.runs import Run
from bootcamp.table import Table

AXES = ("pipeline", "data", "tensor")


def formulas(mesh: dict[str, int], stage: int, batch: int) -> tuple[float, dict[str, float]]:
    """(bytes of a rank's parameters, bytes that it sends in a step along each axis, over gloo)."""
    inner = mesh["data"] * mesh["tensor"]
    config = {"strategy": "3d", "processes": inner * mesh["pipeline"], "mesh": mesh}
    run = setting.of_run({**config, "global_batch": batch, "sequence_parallel": True})
    held = memory.rank_memory(*run, stage * inner)
    return held["parameters"], traffic.bytes_sent(*run, stage * inner)


def along(axis: str) -> str:
    """The mesh of two ranks along one axis, as --mesh takes it."""
    return "x".join("2" if name == axis else "1" for name in AXES)


def by_axis(runs: dict[str, Run]) -> Table:
    """A row for each axis: what rank 0 of its run sends in a step, formula and count."""
    rows = []
    for axis, run in runs.items():
        said = formulas(run.config["mesh"], 0, run.config["global_batch"])[1][axis]
        counted = run.ranks[0]["sent_bytes_per_step"]
        row = {"two ranks along": axis, "formula kB": said / 1e3}
        rows.append(row | {"counted kB": counted and counted / 1e3})
    return Table(rows, "Sent by rank 0 in a step, one axis at a time")


def kinds(run: Run) -> Table:
    """A row for each rank: its place, its stages' parts, what it holds and what it sends."""
    mesh, rows = run.config["mesh"], []
    inner, t = mesh["data"] * mesh["tensor"], mesh["tensor"]
    for number, rank in enumerate(run.ranks):
        stage = number // inner
        parameters, sent = formulas(mesh, stage, run.config["global_batch"])
        sent = sum(sent.values())
        place = (stage, number // t % mesh["data"], number % t)
        row = {"rank": number} | dict(zip(AXES, place, strict=True))
        row["first, last part"] = f"{rank['stages'][0]}, {rank['stages'][-1]}"
        held = {"formula": parameters, "counted": rank["parameter_bytes"]}
        row |= {f"parameters kB, {how}": size / 1e3 for how, size in held.items()}
        counted = rank["sent_bytes_per_step"]
        row |= {"sent kB, formula": sent / 1e3, "sent kB, counted": counted and counted / 1e3}
        rows.append(row)
    return Table(rows, "The eight ranks")


def furthest(table: Table, what: str = "") -> tuple[float | None, float]:
    """(counted, by formula) of the row in which both differ most, in bytes."""
    counted, formula = (
        next(name for name in table.rows[0] if what in name and how in name)
        for how in ("counted", "formula")
    )
    known = [row for row in table.rows if row[counted] is not None]
    if not known:
        return None, 1e3 * table.rows[0][formula]
    row = max(known, key=lambda row: abs(row[counted] / row[formula] - 1))
    return 1e3 * row[counted], 1e3 * row[formula]
