"""Lesson 08b: how rows spread over experts and ranks, bytes of all-to-alls, and variants."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean

from bootcamp.costs import experts, model_shapes, published, sharding
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import sharding_tables

STEP_LINE = "optimizer.step()"
BALANCE_RATE = 0.03  # of a score, by which an expert's balance changes in a step
BALANCE = f"""for router in models.moe.list_routers(model):
    counts = router.counts.float()
    router.balance += {BALANCE_RATE} * (counts.mean() - counts).sign()"""
BALANCE_TOGETHER = BALANCE.replace("counts.float()", "counts.float()\n    dist.all_reduce(counts)")
MOVE_LINE = "model = model.to(device)"


def write_balanced_script(script: str, together: bool = True) -> Path:
    """Write a variant that makes crowded experts less wanted, by the counts of all ranks or one."""
    name = f"{script}_balanced" if together else f"{script}_balanced_apart"
    balance = BALANCE_TOGETHER if together and script != "cpu" else BALANCE
    return variant(script, name, {STEP_LINE: f"{STEP_LINE}\n{balance}"})


def write_crowded_script(*numbers: int) -> Path:
    """Write a variant of ep in which every token chooses these two experts."""
    crowd = f"for block in model[1:-1]:\n    block.router.balance[{list(numbers)}] = 1e6"
    name = f"ep_wanted_{'_'.join(map(str, numbers))}"
    return variant("ep", name, {MOVE_LINE: f"{crowd}\n{MOVE_LINE}"})


def count_choices(run: Run, step: int) -> list[list[list[int]]]:
    """Count how often a rank's tokens chose an expert in a step: [layer][rank][expert]."""
    return list(zip(*(rank["expert_counts"][step] for rank in run.ranks), strict=True))


def rows_of_experts(counts: list[list[int]]) -> list[int]:
    """Count the rows that each expert computes; counts: [rank][expert]."""
    return [sum(column) for column in zip(*counts, strict=True)]


def imbalance(run: Run, rows: Callable = rows_of_experts) -> list[float]:
    """Return the imbalance of experts or ranks in each step, as the mean over the layers.

    rows: rows_of_experts, or costs.experts.rows_of_ranks.
    """
    steps = (map(rows, count_choices(run, step)) for step in range(len(run.steps)))
    return [mean(map(experts.imbalance, step)) for step in steps]


def rows_table(run: Run, step: int) -> Table:
    """Table rows of the busiest and the idlest expert, and of each rank, for each layer."""
    rows = []
    for number, layer in enumerate(count_choices(run, step)):
        total, ranks = rows_of_experts(layer), experts.rows_of_ranks(layer)
        row = {"layer": number, "busiest expert": max(total), "least used": min(total)}
        row |= {f"rank {rank}": rows for rank, rows in enumerate(ranks)}
        rows.append(row | {"most / mean of ranks": experts.imbalance(ranks)})
    return Table(rows, f"Rows in step {step}, for each layer")


def count_handed_bytes(run: Run) -> list[int]:
    """Count the bytes that each rank handed to all-to-alls in the counted step."""
    ranks = (run.collective_counts(rank).items() for rank in range(run.world))
    return [sum(size * n for (kind, size), n in calls if kind == "all-to-all") for calls in ranks]


def count_sent_bytes(run: Run) -> tuple[float | None, float]:
    """Return the bytes that all ranks send in a step: counted by the kernel, and by formula.

    The formula adds rows for other ranks' experts, the counts of these rows, and what DDP sends for
    the rest, as a mean without the first and the last step. With replicas: what FSDP2 sends for
    these and for the rest (snippets/experts_sharded.py). None: nothing was counted.
    """
    ranks, size, together = run.world, run.config["size"], run.config["mesh"]["expert"]
    model, replicas = model_shapes.MOE[size], ranks // together
    groups = [slice(first, first + together) for first in range(0, ranks, together)]
    rows = mean(
        sum(sum(experts.sent_rows(layer[g])) for layer in count_choices(run, step) for g in groups)
        for step in range(1, len(run.steps) - 1)
    )
    counts = experts.COUNT_BYTES * model["experts"] * (together - 1) * replicas
    own, others = experts.parameter_bytes(size, together)
    sent = sharding.sent_bytes("ddp", others, ranks, sharding.GLOO)
    if replicas > 1:
        embedding, *_, head = (sum(layer.numbers) for layer in model_shapes.layers("moe", size))
        root = model_shapes.FLOAT32_BYTES * (embedding + head) / others  # gathered once
        sent = sharding.sent_bytes("fsdp", others, ranks, sharding.GLOO, root=root)
        sent += sharding.sent_bytes("fsdp", own, replicas, sharding.GLOO, root=0)
    formula = rows * model["width"] * model_shapes.FLOAT32_BYTES + model["layers"] * counts
    counted = [rank["sent_bytes_per_step"] for rank in run.ranks]
    return None if None in counted else sum(counted), formula + ranks * sent


def memory_table(runs: dict[str, Run]) -> Table:
    """Table rank 0's megabytes by kind, with its experts' parameters by formula."""
    rows = []
    for name, run in runs.items():
        ranks = run.config["mesh"].get("expert", 1)
        own = experts.parameter_bytes(run.config["size"], ranks)[0] / 1e6
        held = {kind: size / 1e6 for kind, size in sharding_tables.read_memory(run).items()}
        rows.append({"run": name, "of experts, formula": own, **held})
    return Table(rows, "Memory of rank 0 in MB")


def compute_table(size: str) -> Table:
    """Table parameters and arithmetic of a sample's forward pass, for gpt and moe of one size."""
    rows = []
    for name in ("gpt", "moe"):
        row = {"model": name, "parameters": model_shapes.parameters(name, size)}
        mflop = sum(layer.flops for layer in model_shapes.layers(name, size)) / 1e6
        rows.append(row | {"MFLOP of a sample": mflop})
    return Table(rows, f"{size}, by formula")


def published_table() -> Table:
    """Table published mixtures of experts, with their sources."""
    columns = {
        "model": "model",
        "10^9 parameters": "billion_parameters",
        "used for a token": lambda row: row["billion_for_a_token"] or "-",
        "experts of a layer": lambda row: row["experts"] or "-",
        "of a token": lambda row: row["chosen"] or "-",
        "source": "source",
    }
    return Table.of(published.table("mixtures"), columns, "Published")
