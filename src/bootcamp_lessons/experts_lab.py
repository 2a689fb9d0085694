"""Lesson 08b: who computes which rows, by what ranks recorded; bytes of all-to-alls; variants."""

from pathlib import Path
from statistics import mean

from bootcamp.costs import experts, model_shapes, published, sharding
from bootcamp.records import collective_counts
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import sharded

UPDATE = "optimizer.step()"
SPEED = 0.03  # of a score, by which an expert's balance changes in a step
BALANCE = f"""for router in models.moe.routers(model):
    counts = router.counts.float()
    router.balance += {SPEED} * (counts.mean() - counts).sign()"""
TOGETHER = BALANCE.replace("counts.float()", "counts.float()\n    dist.all_reduce(counts)")
MOVE = "model = model.to(device)"


def balanced(script: str, together: bool = True) -> Path:
    """Write a variant that makes crowded experts less wanted, by the counts of one rank or all."""
    alone = script == "cpu" or not together
    name = f"{script}_balanced" if together else f"{script}_balanced_apart"
    return variant(script, name, {UPDATE: f"{UPDATE}\n{BALANCE if alone else TOGETHER}"})


def wanted(*numbers: int) -> Path:
    """A variant of ep in which every token chooses these two experts."""
    change = f"for block in model[1:-1]:\n    block.router.balance[{list(numbers)}] = 1e6\n{MOVE}"
    return variant("ep", f"ep_wanted_{'_'.join(map(str, numbers))}", {MOVE: change})


def layers(run: Run, step: int) -> list[list[list[int]]]:
    """For each layer, for each rank: how often its tokens chose each expert."""
    return list(zip(*(rank["expert_counts"][step] for rank in run.ranks), strict=True))


def of_experts(run: Run) -> list[float]:
    """The experts' imbalance in each step, mean over the layers."""
    totals = (
        [[sum(column) for column in zip(*layer, strict=True)] for layer in layers(run, step)]
        for step in range(len(run.steps))
    )
    return [mean(map(experts.imbalance, step)) for step in totals]


def of_ranks(run: Run) -> list[float]:
    """The imbalance of the rows that ranks compute, in each step, mean over the layers."""
    steps = (map(experts.rows_of_ranks, layers(run, step)) for step in range(len(run.steps)))
    return [mean(map(experts.imbalance, step)) for step in steps]


def rows_table(run: Run, step: int) -> Table:
    """For each layer of a step: rows of the busiest and the idlest expert, and of each rank."""
    table = []
    for number, layer in enumerate(layers(run, step)):
        total = [sum(column) for column in zip(*layer, strict=True)]
        row = {"layer": number, "busiest expert": max(total), "idlest expert": min(total)}
        ranks = experts.rows_of_ranks(layer)
        row |= {f"rank {rank}": rows for rank, rows in enumerate(ranks)}
        table.append(row | {"most / mean of ranks": experts.imbalance(ranks)})
    return Table(table, f"Rows in step {step}, for each layer")


def handed_in(run: Run) -> list[int]:
    """Bytes that each rank handed to all-to-alls in the counted step."""
    return [
        sum(
            row["nbytes"] * row["count"]
            for row in collective_counts.read(run, rank)
            if row["kind"] == "all-to-all"
        )
        for rank in range(run.world)
    ]


def tokens_of_rank(run: Run) -> int:
    """Tokens of a rank in a step."""
    return run.steps[0]["tokens"] // run.world


def shape(run: Run) -> dict:
    """Layers, width, experts and so on of the run's model."""
    return model_shapes.MOE[run.config["size"]]


def bytes_table(run: Run) -> Table:
    """What ranks handed to all-to-alls in the counted step, beside the formula."""
    formula = experts.exchanged_bytes(shape(run), tokens_of_rank(run))
    found = handed_in(run)
    rows = [{"handed by": f"rank {rank}", "MB": size / 1e6} for rank, size in enumerate(found)]
    rows += [{"handed by": "mean of the ranks", "MB": mean(found) / 1e6}]
    rows += [{"handed by": "formula", "MB": formula / 1e6}]
    return Table(rows, "Handed to all-to-alls in a step")


def sent(run: Run) -> tuple[float | None, float]:
    """Count bytes that all ranks send in a step: by the kernel, or None, and by formula.

    The formula adds rows for other ranks' experts, their numbers, and the all-reduce of the rest,
    as a mean without the first and the last step.
    """
    ranks, model = run.world, shape(run)
    between = range(1, len(run.steps) - 1)
    rows = mean(sum(map(sum, map(experts.sent_rows, layers(run, step)))) for step in between)
    sizes = model["layers"] * experts.COUNT * model["experts"] * (ranks - 1)
    others = experts.parameter_bytes(run.config["size"], ranks)[1]
    gradients = sharding.sent_bytes(
        sharding.collectives("ddp"), others, ranks, factors=sharding.GLOO
    )
    formula = rows * model["width"] * experts.NUMBER + sizes + ranks * gradients
    counted = [rank["sent_bytes_per_step"] for rank in run.ranks]
    return None if None in counted else sum(counted), formula


def memory_table(runs: dict[str, Run]) -> Table:
    """Megabytes of rank 0 by kind, and of the parameters those of experts by formula."""
    rows = []
    for name, run in runs.items():
        ranks = run.config["mesh"].get("expert", 1)
        own, _ = experts.parameter_bytes(run.config["size"], ranks)
        row = {"run": name, "of experts, formula": own / 1e6}
        rows.append(row | {kind: size / 1e6 for kind, size in sharded.held(run).items()})
    return Table(rows, "Memory of rank 0 in MB")


def same_compute(size: str) -> Table:
    """Parameters, and arithmetic of a sample's forward pass, of gpt and moe at one size."""
    rows = []
    for name in ("gpt", "moe"):
        stages = model_shapes.layers(name, size)
        numbers = sum(sum(stage.numbers) for stage in stages)
        flops = sum(stage.flops for stage in stages)
        rows.append({"model": name, "parameters": numbers, "MFLOP of a sample": flops / 1e6})
    return Table(rows, f"{size}, by formula")


def published_table() -> Table:
    """Mixtures of experts that were trained, with their sources."""
    rows = []
    for row in published.table("mixtures"):
        line = {"model": row["model"], "10^9 parameters": row["billion_parameters"]}
        line["used for a token"] = row["billion_for_a_token"] or "-"
        line["experts of a layer"] = row["experts"] or "-"
        rows.append(line | {"of a token": row["chosen"] or "-", "source": row["source"]})
    return Table(rows, "Published")
