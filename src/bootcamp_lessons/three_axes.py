"""Tables of lesson 08c: what each rank of three axes holds and sends, by formula and counted."""

from bootcamp.costs import memory, plans, traffic
from bootcamp.records.runs import Run
from bootcamp.table import Table

AXES = ("pipeline", "data", "tensor")


def calculate_bytes(config: dict, rank: int) -> tuple[float, dict[str, float]]:
    """Return (bytes of a rank's parameters, bytes that it sends along each axis, over gloo)."""
    run = plans.of_run({**config, "strategy": "3d", "sequence_parallel": True})
    return memory.rank_memory(*run, rank)["parameters"], traffic.bytes_sent(*run, rank)


def mesh_along(axis: str) -> str:
    """Return the mesh of two ranks along one axis, as --mesh takes it."""
    return "x".join("2" if name == axis else "1" for name in AXES)


def compare_axes(runs: dict[str, Run]) -> Table:
    """Compare what rank 0 sends in a step, one axis at a time, with the formula."""
    rows = []
    for axis, run in runs.items():
        counted = run.ranks[0].sent_bytes_per_step
        row = {"two ranks along": axis, "formula kB": calculate_bytes(run.config, 0)[1][axis] / 1e3}
        rows.append(row | {"counted kB": counted and counted / 1e3})
    return Table(rows, "Sent by rank 0 in a step, one axis at a time")


def compare_ranks(run: Run) -> Table:
    """Table each rank's place, its stages' parts, what it holds and what it sends."""
    rows, (data, tensor) = [], (run.config["mesh"][axis] for axis in ("data", "tensor"))
    for number, rank in enumerate(run.ranks):
        parameters, sent = calculate_bytes(run.config, number)
        place = (number // (data * tensor), number // tensor % data, number % tensor)
        row = {"rank": number} | dict(zip(AXES, place, strict=True))
        row["first, last part"] = f"{rank['stages'][0]}, {rank['stages'][-1]}"
        row["parameters kB, formula"] = parameters / 1e3
        row["parameters kB, counted"] = rank.parameter_bytes / 1e3
        counted = rank.sent_bytes_per_step
        row["sent kB, formula"] = sum(sent.values()) / 1e3
        rows.append(row | {"sent kB, counted": counted and counted / 1e3})
    return Table(rows, "The eight ranks")


def find_largest_difference(table: Table, what: str = "") -> tuple[float | None, float]:
    """Return (counted, by formula) of the row in which both differ most, in bytes."""
    counted, formula = (
        next(name for name in table.columns if what in name and how in name)
        for how in ("counted", "formula")
    )
    known = [row for row in table.rows if row[counted] is not None]
    if not known:
        return None, 1e3 * table.rows[0][formula]
    row = max(known, key=lambda row: abs(row[counted] / row[formula] - 1))
    return 1e3 * row[counted], 1e3 * row[formula]
