"""Lesson 08b: who computes which rows, by what ranks recorded; bytes of all-to-alls; variants."""

from pathlib import Path
from statistics import mean

from bootcamp.costs import experts, model_shapes, published, sharding
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
    """Table rows of the busiest and the idlest expert, and of each rank, for each layer."""
    rows = []
    for number, layer in enumerate(layers(run, step)):
        total = [sum(column) for column in zip(*layer, strict=True)]
        ranks = experts.rows_of_ranks(layer)
        row = {"layer": number, "busiest expert": max(total), "idlest expert": min(total)}
        row |= {f"rank {rank}": rows for rank, rows in enumerate(ranks)}
        rows.append(row | {"most / mean of ranks": experts.imbalance(ranks)})
    return Table(rows, f"Rows in step {step}, for each layer")


def handed_in(run: Run) -> list[int]:
    """Bytes that each rank handed to all-to-alls in the counted step."""
    ranks = [run.collectives(rank) for rank in range(run.world)]
    return [
        sum(call["nbytes"] * call["count"] for call in calls if call["kind"] == "all-to-all")
        for calls in ranks
    ]


def bytes_table(run: Run) -> Table:
    """Table what ranks handed to all-to-alls in the counted step, beside the formula."""
    found, tokens = handed_in(run), run.steps[0]["tokens"] // run.world
    sizes = {f"rank {rank}": size for rank, size in enumerate(found)} | {
        "mean of the ranks": mean(found),
        "formula": experts.exchanged_bytes(model_shapes.MOE[run.config["size"]], tokens),
    }
    columns = {"handed by": lambda item: item[0], "MB": lambda item: item[1] / 1e6}
    return Table.of(sizes.items(), columns, "Handed to all-to-alls in a step")


def sent(run: Run) -> tuple[float | None, float]:
    """Count bytes that all ranks send in a step: by the kernel, or None, and by formula.

    The formula adds rows for other ranks' experts, their numbers, and the all-reduce of the rest,
    as a mean without the first and the last step.
    """
    ranks, model = run.world, model_shapes.MOE[run.config["size"]]
    between = range(1, len(run.steps) - 1)
    rows = mean(sum(map(sum, map(experts.sent_rows, layers(run, step)))) for step in between)
    sizes = model["layers"] * experts.COUNT * model["experts"] * (ranks - 1)
    others = experts.parameter_bytes(run.config["size"], ranks)[1]
    gradients = sharding.sent_bytes("ddp", others, ranks, sharding.GLOO)
    formula = rows * model["width"] * model_shapes.NUMBER + sizes + ranks * gradients
    counted = [rank["sent_bytes_per_step"] for rank in run.ranks]
    return None if None in counted else sum(counted), formula


def memory_table(runs: dict[str, Run]) -> Table:
    """Table megabytes of rank 0 by kind, and of the parameters those of experts by formula."""

    def of_experts(run):
        ranks = run.config["mesh"].get("expert", 1)
        return experts.parameter_bytes(run.config["size"], ranks)[0] / 1e6

    kinds = {kind: lambda run, kind=kind: sharded.held(run)[kind] / 1e6 for kind in sharded.KINDS}
    columns = {"of experts, formula": of_experts, **kinds}
    return Table.of(runs, columns, "Memory of rank 0 in MB")


def same_compute(size: str) -> Table:
    """Table parameters, and arithmetic of a sample's forward pass, of gpt and moe at one size."""
    columns = {
        "model": lambda name: name,
        "parameters": lambda name: model_shapes.parameters(name, size),
        "MFLOP of a sample": lambda name: (
            sum(s.flops for s in model_shapes.layers(name, size)) / 1e6
        ),
    }
    return Table.of(("gpt", "moe"), columns, f"{size}, by formula")


def published_table() -> Table:
    """Table mixtures of experts that were trained, with their sources."""
    columns = {
        "model": "model",
        "10^9 parameters": "billion_parameters",
        "used for a token": lambda row: row["billion_for_a_token"] or "-",
        "experts of a layer": lambda row: row["experts"] or "-",
        "of a token": lambda row: row["chosen"] or "-",
        "source": "source",
    }
    return Table.of(published.table("mixtures"), columns, "Published")
