"""Tables of lessons 06 to 11: memory of ranks, collectives, bytes, bubbles, formulas too."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

from bootcamp.costs import memory, model_shapes, plans, sharding, traffic
from bootcamp.costs import pipeline_schedules as schedules
from bootcamp.costs.model_shapes import FLOAT32_BYTES, course_model
from bootcamp.costs.plans import Plan
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table

STATE = ("parameters", "gradients", "optimizer")
KINDS = (*STATE, "activations")
STEP = 2  # the step whose collectives are counted
# what torch's own wrappers call in a step, in sizes of the model; a dispatcher does not see DDP's
BY_TORCH = {"ddp": {"all-reduce": 1.0}, "zero1": {"all-reduce": 1.0, "broadcast": 1.0}}


def make_counting_script(
    script: str, changes: dict[str, str] | None = None, name: str = ""
) -> Path:
    """Make a variant of a script that counts the collectives of one step, with further changes."""
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


def read_memory(run: Run, rank: int = 0) -> dict[str, int]:
    """Return the bytes that a rank of a run holds, by kind."""
    return {kind: run.ranks[rank][f"{kind.removesuffix('s')}_bytes"] for kind in KINDS}


def state_bytes(run: Run, rank: int = 0) -> int:
    """Sum the bytes of parameters, gradients and optimizer state that a rank holds."""
    return sum(read_memory(run, rank)[kind] for kind in STATE)


def parameter_shapes(model: str = "gpt") -> list[tuple[int, ...]]:
    """List the shapes of a tiny model's parameters."""
    return [shape for layer in model_shapes.layers(model, "tiny") for shape in layer.shapes]


def calculate_state(run: Run, parameters: int, tensors: int) -> dict[str, float]:
    """Calculate rank 0's state in bytes, in float32; tensors: in how many the parameters are."""
    stage = run.config.get("stage", {"ddp": 0, "zero1": 1}.get(run.config["strategy"], 3))
    own_copy = run.config.get("stage", 0) > 0  # DeepSpeed's, of its part: one tensor to AdamW
    each = sharding.DEEPSPEED_FLOAT32 if own_copy else sharding.FLOAT32
    sizes = sharding.rank_bytes(parameters, run.world, stage, each)
    sizes["optimizer"] += 4 if own_copy else 4 * tensors
    return sizes


def compare_state(runs: dict[str, Run], formulas: dict[str, dict], caption: str) -> Table:
    """Table bytes on rank 0, and those of the formulas that are more than 1 % off."""
    rows = []
    for name, run in runs.items():
        counted, formula = read_memory(run), formulas[name]
        off = [kind for kind in STATE if abs(counted[kind] / formula[kind] - 1) > 0.01]
        differs = ", ".join(f"{kind} {formula[kind]:,.0f}" for kind in off)
        rows.append({"run": name, **counted, "by formula, where it differs": differs or "-"})
    return Table(rows, caption)


def compare_tensor_memory(runs: dict[str, Run]) -> Table:
    """Table the megabytes of one rank, measured and by formula."""
    rows = []
    for name, run in runs.items():
        formula = memory.rank_memory(*plans.of_run(run.config))
        for what, values in (("measured", read_memory(run)), ("formula", formula)):
            rows.append({"run": name, "MB": what} | {k: v / 1e6 for k, v in values.items()})
    return Table(rows, "Memory of one rank")


def calculate_sent_bytes(
    strategy: str, model: str, size: str, ranks: int, width: int = FLOAT32_BYTES, **how
) -> float:
    """Calculate bytes that a rank sends in a step under gloo; width: bytes of a gathered number."""
    numbers = [sum(layer.numbers) for layer in model_shapes.layers(model, size)]
    how |= {"root": numbers[-1] / sum(numbers), "factors": sharding.GLOO}
    return sharding.sent_bytes(strategy, width * sum(numbers), ranks, **how)


def communication_volume(run: Run, parameters: int) -> dict[str, float]:
    """Return {kind: sizes of the model} that collectives move in a step of a run."""
    if run.config["strategy"] in BY_TORCH:
        return BY_TORCH[run.config["strategy"]]
    sizes = {}
    for (kind, nbytes), count in run.collective_counts().items():
        sizes[kind] = sizes.get(kind, 0) + count * nbytes / (FLOAT32_BYTES * parameters)
    return {kind: size for kind, size in sizes.items() if size > 0.01}


def sent_bytes_per_parameter(
    run: Run, parameters: int, factors: dict[str, int] = sharding.RING
) -> float:
    """Calculate what a rank sends for this volume, without the ring's factor (N-1)/N."""
    volume, factors = communication_volume(run, parameters), {**factors, "broadcast": 1}
    return FLOAT32_BYTES * sum(factors[kind] * size for kind, size in volume.items())


def compare_volumes(runs: dict[str, Run], parameters: int) -> Table:
    """Compare what runs send, by formula, with what the kernel counted, or None."""

    def counted(run):
        sent = [rank.sent_bytes_per_step for rank in run.ranks]
        ring = FLOAT32_BYTES * parameters * (run.world - 1) / run.world
        return mean(sent) / ring if all(sent) else None

    def volume(run):
        sizes = communication_volume(run, parameters)
        return " + ".join(f"{size:.2g} {kind}" for kind, size in sizes.items())

    def formula(run, factors):
        return sent_bytes_per_parameter(run, parameters, factors) / FLOAT32_BYTES

    columns = {
        "asks for": volume,
        "NCCL, formula": lambda run: formula(run, sharding.RING),
        "gloo, formula": lambda run: formula(run, sharding.GLOO),
        "gloo, counted": counted,
    }
    caption = "What a rank sends in a step, in sizes of the model, times (N-1)/N"
    return Table.of(runs, columns, caption)


def compare_calls(cases: dict[str, tuple[Run, dict]], batch: int) -> Table:
    """Compare a step's collectives with theory; cases: {name: (run, arguments of tensor_calls)}."""
    rows = []
    for name, (run, how) in cases.items():
        theory = traffic.tensor_calls(model_shapes.course_model(), batch, **how)
        for (kind, nbytes), count in run.collective_counts().items():
            row = {"run": name, "collective": kind, "bytes each": nbytes, "counted": count}
            rows.append(row | {"by theory": theory.get((kind, nbytes), 0)})
    return Table(rows, "Collectives of one step; the size is that of the complete tensor")


def compare_sent_bytes(cases: dict[str, tuple[Run, dict]], batch: int) -> Table:
    """Compare what a tensor-parallel rank sends in a step, counted under gloo, with the formula."""
    rows = []
    for name, (run, how) in cases.items():
        sent = run.ranks[0].sent_bytes_per_step
        row = {"run": name, "gloo, counted MB": sent and sent / 1e6}
        calls = traffic.tensor_calls(model_shapes.course_model(), batch, **how)
        for library, factors in (("gloo", sharding.GLOO), ("NCCL", sharding.RING)):
            sent = sharding.bytes_of_calls(calls, run.world, factors)
            row[f"{library}, formula MB"] = sent / 1e6
        rows.append(row)
    return Table(rows, "Sent by a rank in a step")


def list_proofs(proofs: list[tuple[str, object]]) -> Table:
    """Table each proof's largest differences from one process."""
    columns = {
        "run": lambda case: case[0],
        "optimizer": lambda case: case[1].run.config["optimizer"],
        "loss apart": lambda case: case[1].rows[-3]["measured"],
        "parameters": lambda case: case[1].rows[-1]["measured"],
    }
    return Table.of(proofs, columns, "Largest differences from one process; 1e-5 is allowed")


def compare_dependencies(found: list[dict]) -> Table:
    """Table what each strategy makes of each case of snippets/layer_dependencies.py."""
    rows = {}
    for case in found:
        worst = max(case["apart"].values(), default=0)
        verdict = "refused" if case["error"] else "equal" if worst < 1e-5 else f"{worst:.2g} apart"
        key = {"model": case["model"], "with": ", ".join(case["with"]) or "-"}
        rows.setdefault(str(key), key)[case["strategy"]] = verdict
    caption = "Final parameters; apart: from one process's, in the distance that those have moved"
    return Table(list(rows.values()), f"{caption}; the worse of SGD and AdamW")


# Three axes (lesson 08c)

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


# Pipelines (lesson 06b): bubbles, and the bytes that ranks hold


def compare_bubbles(runs: dict[str, Run], micro_batches: int) -> list[dict]:
    """Compare bubbles: by formula and plan for equal stages, with their own times, measured."""
    rows = []
    for name, run in runs.items():
        spans = run.actions()
        how = (name, len(schedules.busy_seconds(spans)), micro_batches)  # not every script's world
        own_times = schedules.simulate(schedules.plan(*how), **schedules.median_seconds(spans))
        row = {"schedule": name, "by formula": schedules.bubble_by_formula(*how)}
        row |= {"by plan": schedules.bubble(schedules.timetable(*how))}
        row |= {"by plan, own times": schedules.bubble(own_times)}
        row |= {"measured": schedules.bubble(spans)}
        rows.append(row | {"hand-off, ms": 1e3 * schedules.hand_over_seconds(spans)})
    return rows


def read_peak_bytes(run: Run, ranks: int) -> list[int]:
    """Return the bytes that each rank of snippets/pipeline_memory.py held at its peak."""
    printed = [json.loads(run.output(rank).splitlines()[-1]) for rank in range(ranks)]
    return [max(max(before, after) for *_, before, after in seen) for seen in printed]


def compare_peaks(found: dict[str, list[int]], samples: int, micro_batches: int) -> list[dict]:
    """Compare peaks {schedule: bytes of each rank} of the tiny GPT with the formula, in MB."""
    rows = []
    for name, of_ranks in found.items():
        ranks, stages = len(of_ranks), schedules.CHUNKS[name]
        flight = schedules.most_in_flight(schedules.timetable(name, ranks, micro_batches))
        split = {"pipeline": ranks, "schedule": name, "virtual": stages}
        plan = Plan(**split, batch=samples, micro_batch=samples // micro_batches)
        for rank, measured in enumerate(of_ranks):
            row = {"schedule": name, "rank": rank, "micro-batches in flight": flight[rank] / stages}
            row["formula"] = memory.pipeline_bytes(course_model(), plan, rank) / 1e6
            rows.append(row | {"measured": measured / 1e6})
    return rows


def cut_traffic(samples: int) -> list[dict]:
    """Compare what two devices send in a step of the course's GPTs: as stages, as data ranks."""
    rows = []
    for size, shape in model_shapes.GPT.items():
        gradients = FLOAT32_BYTES * model_shapes.parameters("gpt", size)
        a_sample = FLOAT32_BYTES * shape["context"] * shape["width"]
        row = {"size": size, "over the cut, MB": samples * a_sample / 1e6}
        row |= {"gradients, MB": gradients / 1e6}
        # where tokens times width is the number of parameters
        rows.append(row | {"samples that make them equal": round(gradients / a_sample)})
    return rows


def cache_rows(lengths: tuple[int, ...], gigabytes: float = 80) -> list[dict]:
    """Table each served model's GB of a request and how many fit on a GPU, in bfloat16.

    None beyond the model's context. Models with groups are there once more without.
    """
    models, rows = {}, []
    for name, model in model_shapes.served_models().items():
        models[name] = model
        if model.key_heads < model.heads:
            models[f"{name}, with multi-head attention"] = replace(model, key_heads=model.heads)
    for name, model in models.items():
        row = {"model": name, "weights GB": 2 * model.parameters / 1e9}
        row |= {"query heads": model.heads, "key-value heads": model.key_heads}
        for length in lengths:
            takes, fit = length <= model.sequence, model.requests_that_fit(length, 1e9 * gigabytes)
            row[f"GB at {length:,}"] = model.cache_bytes(length) / 1e9 if takes else None
            row[f"fit at {length:,}"] = fit if takes else None
        rows += [row] if row["weights GB"] < gigabytes else []
    return rows
