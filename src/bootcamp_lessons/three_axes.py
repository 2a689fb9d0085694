"""Lesson 08c: what each rank of three axes holds and sends, by formula and as recorded.

A mesh is {axis: ranks along it}, as a run's record has it, with the tiny GPT on it.
"""

from bootcamp.costs.model_shapes import GPT, VOCABULARY
from bootcamp.costs.sharding import GLOO
from bootcamp.records.runs import Run
from bootcamp.table import Table

TINY = GPT["tiny"]
AXES = ("pipeline", "data", "tensor")
NUMBER = 4  # bytes


def parts(mesh: dict[str, int], stage: int) -> list[str]:
    """The parts of the model that a stage has; their numbers are nearly equal."""
    names = ["embedding", *["block"] * TINY["layers"], "head"]
    edges = [len(names) * i // mesh["pipeline"] for i in (stage, stage + 1)]
    return names[slice(*edges)]


def parameter_bytes(mesh: dict[str, int], stage: int) -> float:
    """Of a rank: the matrices of its stage's parts divided by the tensor ranks, the rest not."""
    h, t = TINY["width"], mesh["tensor"]
    numbers = {
        "embedding": (VOCABULARY + TINY["context"]) * h,
        "block": (12 * h * h + 4 * h) / t + 5 * h,  # not split: two norms, the bias after the sum
        "head": VOCABULARY * h / t + 2 * h,
    }
    return NUMBER * sum(numbers[part] for part in parts(mesh, stage))


def sent_bytes(mesh: dict[str, int], stage: int, batch: int) -> dict[str, float]:
    """What a rank sends in a step along each axis, over gloo.

    Along tensor: a block gathers twice in each pass, and reduces as often. The embedding gathers in
    its backward pass; the head gathers its input and the scores, and reduces in its backward pass.
    """
    d, t, held = mesh["data"], mesh["tensor"], parts(mesh, stage)
    tokens = batch // d * TINY["context"]
    whole, scores = NUMBER * tokens * TINY["width"], NUMBER * tokens * VOCABULARY
    blocks, head = held.count("block"), held.count("head")
    gathered = (4 * blocks + len(held) - blocks) * whole + head * scores
    reduced = (4 * blocks + head) * whole
    borders = (stage > 0) + (stage < mesh["pipeline"] - 1)
    return {
        "pipeline": borders * whole / t,
        "data": GLOO["all-reduce"] * (d - 1) / d * parameter_bytes(mesh, stage),
        "tensor": (t - 1) / t * (gathered + GLOO["reduce-scatter"] * reduced),
    }


def along(axis: str) -> str:
    """The mesh of two ranks along one axis, as --mesh takes it."""
    return "x".join("2" if name == axis else "1" for name in AXES)


def by_axis(runs: dict[str, Run]) -> Table:
    """A row for each axis: what rank 0 of its run sends in a step, formula and count."""
    rows = []
    for axis, run in runs.items():
        said = sent_bytes(run.config["mesh"], 0, run.config["global_batch"])[axis]
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
        sent = sum(sent_bytes(mesh, stage, run.config["global_batch"]).values())
        place = (stage, number // t % mesh["data"], number % t)
        row = {"rank": number} | dict(zip(AXES, place, strict=True))
        row["first, last part"] = f"{rank['stages'][0]}, {rank['stages'][-1]}"
        held = {"formula": parameter_bytes(mesh, stage), "counted": rank["parameter_bytes"]}
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
