"""Lesson 08c: what each rank of three axes holds and sends, by formula and as recorded."""

from bootcamp.costs import memory, plans, traffic
from bootcamp.records.runs import Run
from bootcamp.table import Table

AXES = ("pipeline", "data", "tensor")


def formulas(config: dict, rank: int) -> tuple[float, dict[str, float]]:
    """(bytes of a rank's parameters, bytes that it sends in a step along each axis, over gloo)."""
    run = plans.of_run({**config, "strategy": "3d", "sequence_parallel": True})
    return memory.rank_memory(*run, rank)["parameters"], traffic.bytes_sent(*run, rank)


def along(axis: str) -> str:
    """The mesh of two ranks along one axis, as --mesh takes it."""
    return "x".join("2" if name == axis else "1" for name in AXES)


def by_axis(runs: dict[str, Run]) -> Table:
    """A row for each axis: what rank 0 of its run sends in a step, formula and count."""
    rows = []
    for axis, run in runs.items():
        counted = run.ranks[0].sent_bytes_per_step
        row = {"two ranks along": axis, "formula kB": formulas(run.config, 0)[1][axis] / 1e3}
        rows.append(row | {"counted kB": counted and counted / 1e3})
    return Table(rows, "Sent by rank 0 in a step, one axis at a time")


def kinds(run: Run) -> Table:
    """A row for each rank: its place, its stages' parts, what it holds and what it sends."""
    rows, (data, tensor) = [], (run.config["mesh"][axis] for axis in ("data", "tensor"))
    for number, rank in enumerate(run.ranks):
        parameters, sent = formulas(run.config, number)
        place = (number // (data * tensor), number // tensor % data, number % tensor)
        row = {"rank": number} | dict(zip(AXES, place, strict=True))
        row["first, last part"] = f"{rank['stages'][0]}, {rank['stages'][-1]}"
        row["parameters kB, formula"] = parameters / 1e3
        row["parameters kB, counted"] = rank.parameter_bytes / 1e3
        counted = rank.sent_bytes_per_step
        row["sent kB, formula"] = sum(sent.values()) / 1e3
        rows.append(row | {"sent kB, counted": counted and counted / 1e3})
    return Table(rows, "The eight ranks")


def furthest(table: Table, what: str = "") -> tuple[float | None, float]:
    """(counted, by formula) of the row in which both differ most, in bytes."""
    counted, formula = (
        next(name for name in table.columns if what in name and how in name)
        for how in ("counted", "formula")
    )
    known = [row for row in table.rows if row[counted] is not None]
    if not known:
        return None, 1e3 * table.rows[0][formula]
    row = max(known, key=lambda row: abs(row[counted] / row[formula] - 1))
    return 1e3 * row[counted], 1e3 * row[formula]
