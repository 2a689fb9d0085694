"""Lessons 06c and 07: what a run held, which collectives a step called, what was sent."""

from pathlib import Path
from statistics import mean

from bootcamp.costs import memory, model_shapes, plans, sharding, traffic
from bootcamp.costs.model_shapes import NUMBER
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table

KINDS = ("parameters", "gradients", "optimizer", "activations")
STATE = KINDS[:3]
STEP = 2  # the step whose collectives are counted
# what torch's own wrappers call in a step, in sizes of the model; a dispatcher does not see DDP's
BY_TORCH = {
    "ddp": {"all-reduce": 1.0},
    "zero1": {"all-reduce": 1.0, "broadcast": 1.0},
}


def counted(script: str, changes: dict[str, str] | None = None, name: str = "") -> Path:
    """A variant of a script that counts the collectives of one step; further changes if given."""
    engine = script == "zero"
    begin = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
    step = "model.step()" if engine else "optimizer.step()"
    optimizer = "model.basic_optimizer" if engine else "optimizer"
    dist = "import torch.distributed as dist"
    lines = {
        dist: f"{dist}\nfrom bootcamp.train import collective_counter",
        begin: f"{begin}\nif step == {STEP}:\n"
        f"    tally = collective_counter.Tally({optimizer})\n    tally.start()",
        step: f"{step}\nif step == {STEP}:\n    tally.stop(context.run_dir)",
    }
    return variant(script, name or f"{script}_counted", {**lines, **(changes or {})})


def held(run: Run, rank: int = 0) -> dict[str, int]:
    """Bytes that a rank of a run holds, by kind."""
    return {kind: run.ranks[rank][f"{kind.removesuffix('s')}_bytes"] for kind in KINDS}


def state(run: Run, rank: int = 0) -> int:
    """Bytes of parameters, gradients and optimizer state that a rank holds."""
    return sum(held(run, rank)[kind] for kind in STATE)


def shapes(model: str = "gpt") -> list[tuple[int, ...]]:
    """Of a tiny model's parameters."""
    return [shape for layer in model_shapes.layers(model, "tiny") for shape in layer.shapes]


def sends(strategy: str, model: str, size: str, ranks: int, width: int = NUMBER, **how) -> float:
    """Calculate bytes that a rank sends in a step under gloo; width: bytes of a gathered number."""
    numbers = [sum(layer.numbers) for layer in model_shapes.layers(model, size)]
    how |= {"root": numbers[-1] / sum(numbers), "factors": sharding.GLOO}
    return sharding.sent_bytes(strategy, width * sum(numbers), ranks, **how)


def by_formula(run: Run, psi: int, tensors: int) -> dict[str, float]:
    """Calculate rank 0's state in bytes, AdamW, float32; psi: parameters, in so many tensors.

    DeepSpeed's optimizer works on a copy of its part, which is one tensor to it.
    """
    stage = run.config.get("stage", {"ddp": 0, "zero1": 1}.get(run.config["strategy"], 3))
    own_copy = run.config.get("stage", 0) > 0
    each = sharding.DEEPSPEED_FLOAT32 if own_copy else sharding.FLOAT32
    sizes = sharding.rank_bytes(psi, run.world, stage, each)
    sizes["optimizer"] += 4 if own_copy else 4 * tensors
    return sizes


def held_table(runs: dict[str, Run], formulas: dict[str, dict], caption: str) -> Table:
    """Table bytes on rank 0, each beside the formula's in brackets."""
    columns = [column for kind in STATE for column in (kind, f"({kind})")] + ["activations"]
    sizes = {
        name: held(run) | {f"({kind})": size for kind, size in formulas[name].items()}
        for name, run in runs.items()
    }
    return Table.of(sizes, dict(zip(columns, columns, strict=True)), caption)


def asked(run: Run, psi: int) -> dict[str, float]:
    """Return {kind: sizes of the float32 model} that collectives move in a step of a run.

    Of DDP and ZeRO-1, whose calls no dispatcher sees, as torch's wrappers make them.
    """
    if run.config["strategy"] in BY_TORCH:
        return BY_TORCH[run.config["strategy"]]
    sizes = {}
    for (kind, nbytes), count in run.collective_counts().items():
        sizes[kind] = sizes.get(kind, 0) + count * nbytes / (NUMBER * psi)
    return {kind: size for kind, size in sizes.items() if size > 0.01}


def ring_bytes(run: Run, psi: int, factors: dict[str, int] = sharding.RING) -> float:
    """Bytes for each parameter that a rank sends for them, without the ring's factor (N-1)/N."""
    factors = {**factors, "broadcast": 1}
    return NUMBER * sum(factors[kind] * size for kind, size in asked(run, psi).items())


def traffic_table(runs: dict[str, Run], psi: int) -> Table:
    """Compare what runs asked for, by formula, with what the kernel counted, or None."""

    def counted(run):
        sent = [rank.sent_bytes_per_step for rank in run.ranks]
        return mean(sent) / (NUMBER * psi * (run.world - 1) / run.world) if all(sent) else None

    columns = {
        "asks for": lambda run: " + ".join(
            f"{n:.2g} {kind}" for kind, n in asked(run, psi).items()
        ),
        "NCCL, formula": lambda run: ring_bytes(run, psi) / NUMBER,
        "gloo, formula": lambda run: ring_bytes(run, psi, sharding.GLOO) / NUMBER,
        "gloo, counted": counted,
    }
    caption = "What a rank sends in a step, in sizes of the model, times (N-1)/N"
    return Table.of(runs, columns, caption)


def proof_table(proofs: list[tuple[str, object]]) -> Table:
    """Show each proof's largest differences from one process."""
    columns = {
        "run": lambda case: case[0],
        "optimizer": lambda case: case[1].run.config["optimizer"],
        "loss apart": lambda case: case[1].rows[-3]["measured"],
        "parameters": lambda case: case[1].rows[-1]["measured"],
    }
    return Table.of(proofs, columns, "Largest differences from one process; 1e-5 is allowed")


def against_theory(cases: dict[str, tuple[Run, dict]], batch: int) -> Table:
    """Compare a step's collectives with theory; cases: {name: (run, arguments of tensor_calls)}."""
    rows = []
    for name, (run, how) in cases.items():
        theory = traffic.tensor_calls(model_shapes.ours(), batch, **how)
        for (kind, nbytes), count in run.collective_counts().items():
            row = {"run": name, "collective": kind, "bytes each": nbytes, "counted": count}
            rows.append(row | {"by theory": theory.get((kind, nbytes), 0)})
    return Table(rows, "Collectives of one step; the size is that of the complete tensor")


def sent_table(cases: dict[str, tuple[Run, dict]], batch: int) -> Table:
    """What a rank of tensor parallelism sends in a step: counted under gloo, and by formula."""

    def formula(case, factors):
        run, how = cases[case]
        calls = traffic.tensor_calls(model_shapes.ours(), batch, **how)
        return sharding.bytes_of_calls(calls, run.world, factors) / 1e6

    def counted(case):
        sent = cases[case][0].ranks[0].sent_bytes_per_step
        return sent and sent / 1e6

    columns = {
        "run": lambda case: case,
        "gloo, counted MB": counted,
        "gloo, formula MB": lambda case: formula(case, sharding.GLOO),
        "NCCL, formula MB": lambda case: formula(case, sharding.RING),
    }
    return Table.of(list(cases), columns, "Sent by a rank in a step")


def tensor_memory_table(runs: dict[str, Run]) -> Table:
    """Megabytes of one rank, measured and by formula."""
    rows = []
    for name, run in runs.items():
        formula = memory.rank_memory(*plans.of_run(run.config))
        for what, values in (("measured", held(run)), ("formula", formula)):
            rows.append({"run": name, "MB": what} | {k: v / 1e6 for k, v in values.items()})
    return Table(rows, "Memory of one rank")
