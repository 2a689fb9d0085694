"""Figures and tables for slides that need more than runs: `{{ figure("prepared.resumed", ...) }}`.

Each function gathers what one of the lessons' drawing functions asks for, from records, from
published values or by formula, and returns its Figure; or it returns a Table, for
`{{ table("prepared.requests_that_fit", ...) }}`. Nothing is drawn here.
"""

import json

from matplotlib.figure import Figure

from bootcamp.costs import memory, pipeline_schedules, published, sharding
from bootcamp.drawing.style import describe_origins
from bootcamp.paths import REFERENCE, shown
from bootcamp.records.runs import name_runs
from bootcamp.table import Table
from bootcamp_lessons import forecasts, sharding_tables
from bootcamp_lessons.diagrams import (
    dataparallel,
    horovod,
    hsdp,
    pipelines,
    saved_checkpoints,
    single_device,
    zero_stages,
)
from bootcamp_lessons.labs import faster_step, hsdp_lab, known_programs

KINDS = ("parameters", "gradients", "optimizer", "activations")
NAMES = {
    "ddp": "DDP",
    "zero1": "ZeRO-1 (PyTorch)",
    "zero": "ZeRO-{stage} (DeepSpeed)",
    "fsdp": "FSDP",
    "hsdp": "HSDP, rows of {shard}",
}


def loader_limits(read: float, train: float) -> Table:
    """Time of a batch at best, by the number of DataLoader workers and of cores."""
    rows = [
        {"workers": workers}
        | {
            f"{n} core{'s' * (n > 1)}": faster_step.predict_batch_seconds(read, train, workers, n)
            for n in (1, 2, 4, 8)
        }
        for workers in (0, 1, 2, 4)
    ]
    caption = f"Units of time, by formula: {read} of work to read a batch, {train} to train on it"
    return Table(rows, caption)


def rounded_products() -> Table:
    """How far a matrix product is off whose inputs were rounded, computed."""
    errors = faster_step.measure_product_errors().items()
    rows = [{"inputs": name, "product off by": f"{error:.1e}"} for name, error in errors]
    return Table(rows, "Two 256 x 256 matrices of random numbers, relative to the exact product")


def kept_activations(samples: int = 32) -> Figure:
    """What the blocks of the tiny GPT hold over a step, plain and checkpointed."""
    from bootcamp.train.models import gpt

    count, width, heads, context = gpt.SIZES["tiny"].values()
    number = 4 * samples * context
    return single_device.activations_in_step(
        count, number * (16 * width + heads + 4), number * width
    )


def devices_of_data_parallel(run) -> Figure:
    """What a step puts on each of four devices of DataParallel, from the record of one process."""
    outputs = 4 * run.steps[0]["tokens"] * 256  # a float32 for each of 256 bytes
    bars = memory.data_parallel(run.ranks[0], 4, outputs)
    note = f"Four devices, {run.config['global_batch']} samples: by formula from this record."
    return _with_origin(dataparallel.memory_by_device(bars, note), [run])


def horovod_timeline(run) -> Figure:
    """The last step of a run on Horovod's own timeline."""
    steps = horovod.read_timeline(run.folder / "timeline.json")
    return horovod.timeline(steps[-1], run)


def planned_and_measured(run) -> Figure:
    """A pipeline's recorded step under its plan, which knows each stage's measured times."""
    spans = run.actions()
    flags = run.config
    plan = pipeline_schedules.plan(flags["schedule"], run.world, flags["micro_batches"])
    planned = pipeline_schedules.simulate(plan, **pipeline_schedules.median_seconds(spans))
    charts = {"planned, with these stages' times": planned, "measured": spans}
    title = (
        f"{flags['schedule'].upper()} on {run.world} ranks, {flags['micro_batches']} micro-batches"
    )
    return _with_origin(pipelines.gantt(charts, title, "milliseconds", scale=1e3), [run])


def sharded(*runs) -> Figure:
    """What rank 0 of each run holds, by kind; parameters, gradients and state by formula too."""
    rows, formula = {}, {}
    stages = {"ddp": 0, "zero1": 1, "fsdp": 3, "hsdp": 3}
    numbers = runs[0].ranks[0]["gradient_bytes"] / 4
    for run in runs:
        name = NAMES[run.strategy].format(**run.config)
        rank = run.ranks[0]
        rows[name] = {kind: rank[f"{kind.removesuffix('s')}_bytes"] for kind in KINDS}
        if run.strategy in stages:
            row = run.config.get("shard") or run.world
            each = sharding.FLOAT32
            parts = sharding.rank_bytes(numbers, row, stages[run.strategy], each)
            formula[name] = sum(parts.values())
    return zero_stages.rank_memory(rows, formula, runs)


def resumed(baseline, *attempts) -> Figure:
    """Runs that go on where the one before ended, over one that never stopped."""
    return saved_checkpoints.resumed_losses(
        baseline, list(attempts), name_runs(attempts), "Three runs, one training"
    )


def how_often(failures: int, days: int, restart_seconds: int) -> Figure:
    """Time lost by the interval between saves, when so many failures come in so many days."""
    between = days * 86400 / failures
    return saved_checkpoints.lost_time([1, 10, 60, 600], between, restart_seconds)


def link_ranking(*runs) -> Figure:
    """Seconds per step with the link open and slow, for DDP, FSDP and HSDP in lesson 08.

    runs: of each strategy the one with the link open, then the slow one.
    """
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    free = {run.strategy.upper(): run for run, _ in pairs}
    slow = {run.strategy.upper(): run for _, run in pairs}
    formula = hsdp_lab.predict_link_seconds(pairs[0][1].config["link"])
    return hsdp.step_seconds(free, slow, formula)


def requests_that_fit(gigabytes: float, *lengths: int) -> Table:
    """Requests of these lengths that a GPU answers at a time, for models that take all of them."""
    rows = sharding_tables.cache_rows(lengths, gigabytes)
    taken = [row for row in rows if None not in row.values()]
    return Table(
        [{key: row[key] for key in row if key != "query heads"} for row in taken],
        f"By formula: a GPU of {gigabytes:g} GB, weights and cache in bfloat16; requests of "
        f"{' and '.join(f'{length:,}' for length in lengths)} tokens.",
    )


def triton_drills() -> Table:
    """What clients saw of Triton when one thing of it failed, as lesson 11 recorded it.

    Raises FileNotFoundError before it has been recorded.
    """
    path = REFERENCE / "11_serving" / "triton_drills.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{shown(path)}: there is no such record. Run lesson 11 with BOOTCAMP_RECORD=1."
        )
    found = json.loads(path.read_text())
    machine, rows = found["machine"], found["rows"]
    return Table(
        [{key: value for key, value in row.items() if key != "requests"} for row in rows],
        "Triton behind a front that checks requests; at least 400 requests in each row. On "
        f"{machine['cpu']}, {machine['cores']} cores; recorded run, 11_serving/{path.stem}.",
    )


def published_scaling() -> Table:
    """What Horovod's authors published of its scaling, by model."""
    found = published.table("horovod")
    first = found[0]
    share = f"% of {first['gpus']} times the speed of one GPU"
    rows = [{"model": row["model"], share: int(row["scaling_efficiency_pct"])} for row in found]
    servers = f"{first['servers']} servers with {first['gpus_per_server']} {first['gpu']} GPUs each"
    return Table(rows, f"{servers}, {first['network']}. Source: {first['source']}.")


def strategies() -> Table:
    """What came of Lightning's strategies on two CPU ranks, as lesson 13b recorded it.

    Those with one bare script and one outcome share a row.
    """
    found, together = known_programs.strategies(), {}
    for row in found.rows:
        error, colon, _ = row["on two CPUs"].partition(": ")
        ends = f"refuses, {error}" if colon else error.partition(", ")[2]
        together.setdefault((row["here"].rpartition("/")[2], ends), []).append(row["strategy"])
    rows = []
    for (here, ends), all_of in together.items():
        name = ", ".join(all_of) if len(all_of) < 3 else f"{all_of[0]} to {all_of[-1][-1]}"
        rows.append({"strategy": name, "here": here, "there": ends})
    return Table(rows, found.caption)


def wrong_network(model: str, gpus: int, planned: float, real: float) -> Table:
    """On `real` GB/s for a host: the best plan, and the one that is best on `planned` GB/s."""
    names = ("tensor", "pipeline", "data", "ZeRO", "micro-batch", "recompute")
    (chosen, *_), there = (
        forecasts.list_plans(model, gpus=gpus, host_gb_s=rate).rows for rate in (planned, real)
    )
    taken = next(row for row in there if all(row[name] == chosen[name] for name in names))
    rows = [
        {"chosen for": words} | {name: row[name] for name in names} | {"s": row["seconds_per_step"]}
        for words, row in {f"{real:g} GB/s": there[0], f"{planned:g} GB/s": taken}.items()
    ]
    return Table(rows, f"{model} on {gpus} H100s, {real:g} GB/s for a host: predicted")


def _with_origin(figure: Figure, runs) -> Figure:
    """Add where the numbers come from to the foot, for a drawing that does not say so itself."""
    foot = " ".join([figure.get_supxlabel().strip(), *describe_origins(runs)]).strip()
    figure.supxlabel(foot, x=0.012, ha="left")
    figure.alt = f"{figure.alt} {' '.join(describe_origins(runs))}"
    return figure
