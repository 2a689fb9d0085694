"""Figures for slides that need more than runs: `{{figure prepared.slept pp-2}}`.

Each function gathers what one of the lessons' drawing functions asks for, from records, from
published values or by formula, and returns its Figure. Nothing is drawn here.
"""

from matplotlib.figure import Figure

from bootcamp.drawing.style import origins
from bootcamp.records.runs import names
from bootcamp.theory import model_shapes, pipeline_schedules, published, sharding
from bootcamp_lessons.diagrams import (
    dataparallel,
    horovod,
    hsdp,
    model_parallel,
    pipeline_gantt,
    saved_checkpoints,
    single_device,
    zero_stages,
)

KINDS = ("parameters", "gradients", "optimizer", "activations")
NAMES = {
    "ddp": "DDP",
    "zero1": "stage 1 (PyTorch)",
    "zero": "stage {stage} (DeepSpeed)",
    "fsdp": "FSDP",
    "hsdp": "HSDP, rows of {shard}",
}
GPT_SIZES = ("small", "medium", "large", "xl")
ADAMW_BYTES = 16  # of a parameter in float32: itself, its gradient, two moments
HSDP_LESSON = {  # records of the lesson: how theory calls them
    "DDP": {"strategy": "ddp"},
    "DDP fp16": {"strategy": "ddp", "number": 0.5},
    "FSDP": {"strategy": "fsdp"},
    "FSDP keep": {"strategy": "fsdp", "keep_gathered": True},
    "HSDP": {"strategy": "hsdp", "shard": 2},
}


def gpu_speeds() -> Figure:
    """Published arithmetic and memory bandwidth of some GPUs."""
    gpus = published.table("hardware")
    rows = [
        {
            "device": gpu["gpu"],
            "flops_per_second": 1e12 * float(gpu["peak_bf16_or_fp16_tflops"]),
            "bytes_per_second": 1e12 * float(gpu["hbm_tb_s"]),
            "measured": False,
        }
        for gpu in gpus
    ]
    return single_device.speeds(rows, gpus[0]["source"])


def kept_activations(samples: int = 32) -> Figure:
    """What the blocks of the tiny GPT hold over a step, plain and checkpointed."""
    from bootcamp.train.models import gpt

    count, width, heads, context = gpt.SIZES["tiny"].values()
    number = 4 * samples * context
    return single_device.held_over_a_step(count, number * (16 * width + heads + 4), number * width)


def devices_of_data_parallel(run) -> Figure:
    """What a step puts on each of four devices of DataParallel, from the record of one process."""
    rank, n = run.ranks[0], 4
    outputs = 4 * run.steps[0]["tokens"] * 256  # a float32 for each of 256 bytes
    model = {"parameters": rank["parameter_bytes"], "gradients": rank["gradient_bytes"]}
    state = {"optimizer state": rank["optimizer_bytes"]}
    share = {"activations": (rank["activation_bytes"] - outputs) / n}
    bars = {
        "DataParallel,\ndevice 0": model | state | share | {"outputs": 2 * outputs},
        "DataParallel,\neach other": model | share | {"outputs": outputs / n},
        "DDP,\neach rank": model | state | share | {"outputs": 2 * outputs / n},
    }
    note = f"Four devices, {run.config['global_batch']} samples: by formula from this record."
    return _with_origin(dataparallel.memory_by_device(bars, note), [run])


def horovod_published() -> Figure:
    """Scaling efficiency that Horovod's authors published."""
    return horovod.published_scaling(published.table("horovod"))


def horovod_timeline(run) -> Figure:
    """The last step of a run on Horovod's own timeline."""
    steps = horovod.read_timeline(run.folder / "timeline.json")
    return horovod.timeline(steps[-1], run)


def what_fits() -> Figure:
    """Gigabytes that training needs by the number of parameters, beside the memory of GPUs."""
    from bootcamp.train.models import gpt

    needs = {"state alone": [], "state and 1 sample": [], "state and 8 samples": []}
    for size in GPT_SIZES:
        count, width, heads, context = gpt.SIZES[size].values()
        parameters = sum(sum(layer.numbers) for layer in model_shapes.layers("gpt", size))
        for samples, points in zip((0, 1, 8), needs.values(), strict=True):
            numbers = context * (count * (16 * width + heads + 4) + 2 * width + 2 + 256)
            gigabytes = (ADAMW_BYTES * parameters + 4 * samples * numbers) / 1e9
            points.append((parameters, gigabytes))
    return model_parallel.what_fits(needs, _gpus_by_memory())


def _gpus_by_memory() -> dict[str, float]:
    """{names of the GPUs with this memory: GB}, of a GPU with two sizes the smaller.

    A size so near to a smaller one that their names would overlap is left out.
    """
    by_size = {}
    for gpu in published.table("hardware"):
        gigabytes = float(gpu["memory"].replace("/", "-").split("-")[0].split()[0])
        by_size.setdefault(gigabytes, []).append(gpu["gpu"].split()[0])
    kept, last = {}, 0.0
    for gigabytes in sorted(by_size):
        if gigabytes > 1.5 * last:
            kept[", ".join(by_size[gigabytes])] = last = gigabytes
    return kept


def _theory(schedule: str, ranks: int, micro_batches: int) -> list:
    stages = pipeline_schedules.CHUNKS[schedule]  # of a rank, which share its time
    orders = pipeline_schedules.plan(schedule, ranks, micro_batches)
    return pipeline_schedules.simulate(
        orders, forward_seconds=1 / stages, backward_seconds=2 / stages
    )


def whole_and_cut() -> Figure:
    """A batch on four ranks, whole and cut into eight micro-batches. By theory."""
    whole = pipeline_schedules.simulate(
        pipeline_schedules.plan("gpipe", 4, 1), forward_seconds=8, backward_seconds=16
    )
    charts = {"the whole batch": whole, "8 micro-batches": _theory("gpipe", 4, 8)}
    return pipeline_gantt.gantt(charts, "The same batch on four ranks: whole, and cut into eight")


def some_schedules(*wanted: str) -> Figure:
    """Schedules of 4 ranks and 8 micro-batches on one scale. By theory."""
    charts = {name: _theory(name, 4, 8) for name in wanted}
    return pipeline_gantt.gantt(charts, "4 ranks, 8 micro-batches, the same work")


def planned_and_measured(run) -> Figure:
    """A pipeline's recorded step under its plan, which knows each stage's measured times."""
    spans = pipeline_schedules.recorded(run)
    flags = run.config
    plan = pipeline_schedules.plan(flags["schedule"], run.world, flags["micro_batches"])
    planned = pipeline_schedules.simulate(plan, **pipeline_schedules.measured_seconds(spans))
    charts = {"planned, with these stages' times": planned, "measured": spans}
    title = (
        f"{flags['schedule'].upper()} on {run.world} ranks, {flags['micro_batches']} micro-batches"
    )
    return _with_origin(pipeline_gantt.gantt(charts, title, "milliseconds", scale=1e3), [run])


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
    return zero_stages.held(rows, formula, runs)


def zero_published() -> Figure:
    """The ZeRO paper's example for each stage, beside the formula."""
    rows = published.table("zero_figure1")
    computed = {}
    for row in rows:
        size, ranks, stage = (int(row[key]) for key in ("parameters", "ranks", "stage"))
        computed[stage] = sharding.rank_bytes(size, ranks, stage, sharding.MIXED)
    return zero_stages.published(computed, rows)


def resumed(baseline, *attempts) -> Figure:
    """Runs that go on where the one before ended, over one that never stopped."""
    return saved_checkpoints.one_after_the_other(
        baseline, list(attempts), names(attempts), "Three runs, one training"
    )


def how_often(failures: int, days: int) -> Figure:
    """Time lost by the interval between saves, when so many failures come in so many days."""
    return saved_checkpoints.how_often([1, 10, 60, 600], days * 86400 / failures)


def link_ranking(*runs) -> Figure:
    """Seconds per step with the link open and slow, for the strategies of lesson 08.

    runs: of each strategy the one with the link open, then the slow one; see HSDP_LESSON.
    """
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    strategies = [_hsdp_name(slow) for _, slow in pairs]
    free = {name: run for name, (run, _) in zip(strategies, pairs, strict=True)}
    slow = {name: run for name, (_, run) in zip(strategies, pairs, strict=True)}
    formula = {name: _link_seconds(name, run) for name, run in slow.items()}
    return hsdp.ranking(free, slow, formula)


def _hsdp_name(run) -> str:
    half = " fp16" if run.config.get("hook") == "fp16" else ""
    keep = " keep" if run.config.get("keep_gathered") else ""
    return run.strategy.partition("_")[0].upper() + half + keep


def _link_seconds(name: str, run) -> float:
    """Seconds in which a host's link carries what the strategy sends in a step, by formula."""
    how = HSDP_LESSON[name]
    row = run.config.get("shard") or run.world
    copies = run.world / row if how["strategy"] != "ddp" else run.world
    model = sum(rank["gradient_bytes"] for rank in run.ranks) / copies
    hosts, factors = run.config["hosts"], sharding.GLOO
    calls = sharding.collectives(**how)
    sent = sharding.link_bytes(calls, model, run.world, hosts, how.get("shard"), factors)
    return sent / (float(run.config["link"].removesuffix("mbit")) * 1e6 / 8)


def _with_origin(figure: Figure, runs) -> Figure:
    """Add where the numbers come from to the foot, for a drawing that does not say so itself."""
    foot = " ".join([figure.get_supxlabel().strip(), *origins(runs)]).strip()
    figure.supxlabel(foot, x=0.012, ha="left")
    figure.alt = f"{figure.alt} {' '.join(origins(runs))}"
    return figure
