"""Every figure of the course with values to draw: `FIGURES["plots.memory"](make_run)`.

A key is the module and the function, and behind a colon what makes these values hard to draw: texts
far from each other, or in each other's way. A figure that needs no values is here by itself.
"""

import csv
import functools
import importlib
import inspect
import pkgutil
from collections import Counter

import legible
import records
from matplotlib.figure import Figure

from bootcamp.costs import memory, pipeline_schedules
from bootcamp.costs.pipeline_schedules import Action, Span
from bootcamp.drawing import plots
from bootcamp.paths import SRC
from bootcamp.serving.load_test import Load
from bootcamp_lessons import communication, diagrams, forecasts, generation
from bootcamp_lessons.diagrams import dataparallel, horovod
from bootcamp_lessons.labs import serving_lab


@functools.cache
def list_figures() -> dict:
    """All functions of the package that draw a figure: {"module.function": function}."""
    names = [module.name for module in pkgutil.iter_modules(diagrams.__path__)]
    modules = {name: importlib.import_module(f"{diagrams.__name__}.{name}") for name in names}
    return {
        f"{name}.{key}": function
        for name, module in {"plots": plots, **modules}.items()
        for key, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__.startswith(module.__name__)
        and not key.startswith("_")
        and _draws(inspect.signature(function))
    }


def _draws(signature: inspect.Signature) -> bool:
    return signature.return_annotation is Figure or not signature.parameters


def _takes_nothing(function) -> bool:
    given = inspect.signature(function).parameters.values()
    return all(each.default is not each.empty for each in given)


# Values


def make_crowded(make, speed=100.0):
    """A run of four ranks on two cores."""
    return make("ddp", 4, speed, cores=2)


def make_growing(make) -> list:
    """Runs of four strategies, whose speed grows by another power of the ranks."""
    powers = {"ddp": 0.95, "ddp_by_hand": 0.6, "zero": 0.9, "hsdp": 0.8}
    return [
        make(name, ranks, 100.0 * ranks**power, device="cuda")
        for name, power in powers.items()
        for ranks in (1, 2, 4, 8)
    ]


def make_pairs(make, *speeds, **how) -> list[tuple]:
    """Two ranks at these speeds beside one at 100 samples/s, with a larger batch each."""
    batches = [32 * 4**k for k in range(len(speeds))]
    return [
        (make("cpu", 1, batch=batch, **how), make("ddp", 2, speed, batch=batch))
        for batch, speed in zip(batches, speeds, strict=True)
    ]


def make_batches(make, speeds: dict) -> list:
    """One process with a larger batch each; speeds: {samples per second: bytes held}."""
    return [
        make("gpu", 1, speed, 4**k, sizes={**records.BYTES, "activation_bytes": size})
        for k, (speed, size) in enumerate(speeds.items())
    ]


PHASES = {  # of DataParallel's step: when they begin, and how long they take, in milliseconds
    "training_step": (0, 1),
    "Optimizer.zero_grad#AdamW.zero_grad": (0.01, 0.005),
    "scatter": (0.02, 0.01),
    "replicate": (0.03, 0.1),
    "parallel forward": (0.2, 0.3),
    "gather": (0.5, 0.02),
    "backward": (0.52, 0.4),
    "reduce": (0.92, 0.03),
    "Optimizer.step#AdamW.step": (0.95, 0.04),
}


def make_phases(make):
    """A run of DataParallel with these phases in its trace."""
    spans = [(name, "user_annotation", *when) for name, when in PHASES.items()]
    return make("dp_by_hand", 1, traced=[0], trace=records.make_trace(*spans))


def make_rows(first: int, losses, attempt: int = 0, seconds=None) -> list[dict]:
    """The rows of steps.jsonl from step `first` on."""
    seconds = seconds or [0.1] * len(losses)
    same = {"attempt": attempt, "samples": 32, "tokens": 64}
    return [
        {"step": first + k, "loss": loss, "seconds": took, **same}
        for k, (loss, took) in enumerate(zip(losses, seconds, strict=True))
    ]


def make_attempts(make):
    """A run that did steps 0 to 7, and was begun again from a checkpoint of step 5."""
    rows = make_rows(0, [1.0] * 8) + make_rows(5, [1.0] * 7, attempt=1)
    return make("ddp_options", steps=rows)


def make_saving(make):
    """A run whose steps 2 and 4 bear a save."""
    return make("fsdp", steps=make_rows(0, [1.0] * 6, seconds=[9.0, 0.1, 0.5, 0.1, 0.7, 0.2]))


def straight(size):
    """Seconds of an all-reduce: 50 µs and 2 GB/s."""
    return 50e-6 + size * 0.5e-9


def bent(size):
    """Seconds of an all-reduce that is slower beyond 1 MiB."""
    return 50e-6 + min(size, 2**20) * 0.1e-9 + max(0, size - 2**20) * 0.9e-9


def make_sweep(make, cost, backend="gloo") -> list:
    """A sweep of all-reduces over four ranks, and the line that is fitted to it."""
    sweep = records.write_sweep(make().folder / "sweep", cost, 4, backend)
    return [sweep, sweep.fit()]


def make_load(latency: float, slow: int = 0) -> Load:
    """A load of a hundred answers, of which some took a second."""
    latencies = [latency] * (100 - slow) + [1.0] * slow
    return Load(2.0, Counter({200: 100}), 0, latencies, [n / 100 for n in range(100)])


def make_answers(latency: float) -> list[dict]:
    """Answers per second of each server of the lab."""
    return [
        {"server": words, "batches": settings["max_batch"] > 1, "answers/s": 10 / latency}
        for words, settings in serving_lab.SERVERS.items()
    ]


def make_tasks(*seconds: tuple) -> list[dict]:
    """Tasks with these seconds of one worker, two threads, two processes, and a slower round."""
    tasks = [
        dict(zip(dataparallel.WORKERS, ([3 * s, s] for s in each), strict=True)) for each in seconds
    ]
    return [{"work": f"task {k}", **task} for k, task in enumerate(tasks)]


def make_ring(world: int = 3) -> list[dict]:
    """What the ranks of src/snippets/horovod_ring.py print, simulated."""
    held = [[[10**rank * (piece + 1)] for piece in range(world)] for rank in range(world)]
    total = [sum(10**rank for rank in range(world)) * (piece + 1) for piece in range(world)]
    ranks = [{"held": [held[rank]], "sent": [], "total": total} for rank in range(world)]
    for step in range(2 * (world - 1)):
        before, held = held, [[list(piece) for piece in rank] for rank in held]
        for rank in range(world):
            sent, to = (rank - step) % world, (rank + 1) % world
            added = before[to][sent][0] if step < world - 1 else 0
            held[to][sent] = [before[rank][sent][0] + added]
            ranks[rank]["sent"].append(sent)
        for rank in range(world):
            ranks[rank]["held"].append(held[rank])
    return ranks


def make_trainings(*rows: tuple) -> list[dict]:
    """Trainings of a sweep over learning rates."""
    names = ("batch", "warm_up", "rate", "held_out")
    return [{"seed": 0, **dict(zip(names, row, strict=True))} for row in rows]


def read_published(name: str) -> list[dict]:
    """The rows of a table of published numbers."""
    with open(SRC / "bootcamp" / "costs" / "published" / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def plan_schedule(schedule: str, ranks: int = 2, micro_batches: int = 4) -> list[Span]:
    """When the ranks of a pipeline do what, in theory."""
    return pipeline_schedules.timetable(schedule, ranks, micro_batches)


STEP_OF_TWO_RANKS = [
    Span(0, Action("F", 0, 0), 0.0, 1.0),
    Span(1, Action("F", 1, 0), 1.0, 2.0),
    Span(1, Action("B", 1, 0), 2.0, 4.0),
    Span(0, Action("B", 0, 0), 4.0, 6.0),
]
KINDS_HELD = {"parameters": 4e6, "gradients": 4e6, "optimizer": 2e6, "activations": 1e6}
FSDP_PHASES = [("all-gather", 1.0, 1.5), ("complete", 1.5, 3.1), ("reduce-scatter", 6.1, 6.9)]
HOROVODS_STEP = {
    "all_reduces": 2,
    "spans": [
        (tensor, activity, 1e3 * begin, 1e3 * (begin + 1))
        for tensor in ("weight", "a_tensor_with_quite_a_long_name", "mean_loss")
        for begin, activity in enumerate(horovod.ACTIVITIES)
    ],
}
HALVES = {
    "rows": [{"file": f"__{k}_0.distcp", "offsets": (4 * k, 0), "sizes": (4, 6)} for k in (0, 1)],
    "columns": [
        {"file": f"__{k}_0.distcp", "offsets": (0, 3 * k), "sizes": (8, 3)} for k in (0, 1)
    ],
}
NO_FATE = {"zero": 0.0, "few digits": 0.0, "all digits": 1.0, "infinite": 0.0}
FATES = [{**NO_FATE, "zero": 0.25, "all digits": 0.75}, {**NO_FATE, "infinite": 0.5}]
STAGE = {"parameter_bytes": 1, "activation_bytes": 1, "forward_seconds": 1, "backward_seconds": 2}
ORDERS = {
    name: [
        {"rank": rank, "held": [rank, 1 - rank], "computed": row} for rank, row in enumerate(rows)
    ]
    for name, rows in (("straight", [[4, 0], [4, 4]]), ("zigzag", [[3, 2], [3, 2]]))
}
PLANS = {
    "Ada": {"data": 256, "stage": 3},
    "Bo": {"tensor": 8, "data": 8, "pipeline": 4, "stage": 1},
}
PEAKS = [
    {"schedule": name, "rank": rank, "measured": 2.0 + rank, "formula": 2.0}
    for name in ("gpipe", "1f1b")
    for rank in range(2)
]
OPERATIONS = {  # on a roofline: above the roof, and in its corner
    "cached": (0.08, 4e9, True),
    "product number 0": (0.1, 0.7e9, False),
    "product number 1": (60, 290e9, False),
    "product number 2": (110, 763e9, False),
    "product number 3": (120, 820e9, False),
}

# What a figure is given, which may be drawn from runs that `make` writes.
GIVEN = {
    "plots.loss_curves": lambda make: [
        make("cpu", 1),
        *(make(name, ranks) for name in ("ddp", "zero") for ranks in (1, 2)),
        make_crowded(make),
    ],
    "plots.loss_curves: a little apart": lambda make: [
        make("cpu", 1),
        *(make(name, losses=(4.00003, *records.LOSSES[1:])) for name in ("pp", "tp", "mp")),
    ],
    "plots.loss_curves: many, some without a number": lambda make: [
        make("cpu", 1),
        *(
            make(
                "ddp",
                n,
                cpu=f"Processor {n} of another machine",
                losses=[4.0] + 5 * [loss],
                status="failed",
            )
            for n, loss in zip((1, 2, 4, 8, 16), (3.0, *[float("nan")] * 4), strict=True)
        ),
    ],
    "plots.throughput": lambda make: [
        make("cpu", 1, 408.0),
        make("ddp", 2, [1.0, 1.0, 1.0, 600.0, 800.0, 900.0]),
        make_crowded(make, 555.0),
        make("ddp_by_hand", 8, 1200.0, device="cuda"),
    ],
    "plots.throughput: machines with long names": lambda make: [
        make("ddp", n, cpu=f"Processor {n}" + " with a name that goes on" * 4) for n in (1, 2)
    ],
    "plots.throughput: twins": lambda make: [
        make("model_parallel", 2, 99.0 * n, batch=32 * n, device="cuda") for n in range(1, 9)
    ],
    "plots.scaling": lambda make: [
        make("ddp", 1),
        make("ddp", 2, 180.0),
        make_crowded(make, 190.0),
    ],
    "plots.scaling: many": make_growing,
    "plots.scaling: left out": lambda make: [
        make("cpu", 1, 50.0),
        make("ddp", 1),
        make("ddp", 2, 150.0),
        make("ddp", 4, shared=True),
        make_crowded(make),
    ],
    "plots.scaling: long names": lambda make: [
        make("single_process", 1),
        *(make(f"model_parallel_{k}", 2) for k in range(3)),
    ],
    "plots.scaling: slower than one": lambda make: [make("ddp", 1), make("ddp", 2, 15.0)],
    "plots.scaling: shared cores": lambda make: [make("ddp", 1, shared=True), make("ddp", 2)],
    "plots.memory": lambda make: [make("cpu", 1), make("ddp", 2), make_crowded(make)],
    "plots.memory: 8 GPUs": lambda make: [make("ddp_by_hand", 8, device="cuda")],
    "plots.timeline": lambda make: [make("ddp", 2, traced=(0, 1))],
    "plots.timeline: 7 of 8 ranks": lambda make: [make("mp", 8, cores=2, traced=range(7))],
    "plots.sent_bytes": lambda make: [
        make("ddp", 1, sent=0.0),
        make_crowded(make),
        make("ddp", 4, sent=None),
    ],
    "plots.achieved": lambda make: [
        make("cpu", 1, 0.3),
        make("ddp", 2, 120.0),
        make_crowded(make, 3860.0),  # beyond the peak
    ],
    "scaling.speed_up_by_batch": lambda make: [make_pairs(make, 101.0, 199.0)],
    "scaling.speed_up_by_batch: near one": lambda make: [make_pairs(make, 95.0, 104.0)],
    "scaling.speed_up_by_batch: 50": lambda make: [make_pairs(make, 2.0, 5000.0, 100.0)],
    "scaling.speed_up_by_batch: shared cores": lambda make: [
        make_pairs(make, 95.0, 180.0, 190.0, 199.0, shared=True)
    ],
    "scaling.rate_sweep": lambda make: [
        make_trainings(
            (32, 0, 0.05, 2.0),
            (32, 0, 0.1, 2.1),
            (256, 0, 0.1, 2.9),
            (256, 0, 0.8, float("nan")),
            (256, 5, 0.4, 2.5),
        ),
        make("learning_rates", 2),
    ],
    "single_device.batch_curve": lambda make: [
        make_batches(make, {2570.0: 17_800, 6100.0: 4_630_000, 8830.0: 4_800_000, 84e3: 18_200_000})
    ],
    "single_device.batch_curve: nothing held": lambda make: [
        make_batches(make, {4630.0: 0, 4800.0: 0})
    ],
    "hsdp.step_seconds": lambda make: [
        {"ddp": make("ddp", 4, 1.0), "fsdp": make("fsdp", 4, 1000.0)},
        {name: make(name, 4, 500.0, link="200mbit") for name in ("ddp", "fsdp")},
        {"ddp": 0.01, "fsdp": 0.19},
    ],
    "dataparallel.phases": lambda make: [make_phases(make), make_phases(make)],
    "dataparallel.workers": lambda make: [
        make_tasks((17.7, 33.572, 38.749), (0.002, 0.002, 0.002), (999.0, 999.0, 999.0)),
        2,
    ],
    "dataparallel.workers: fast": lambda make: [
        make_tasks((0.96, 0.97, 0.98), (4e-5, 4e-5, 4e-5), (0.9994, 0.9994, 0.9994)),
        2,
    ],
    "dataparallel.memory_by_device": lambda make: [
        {"DataParallel, device 0": KINDS_HELD, "others": KINDS_HELD},
        "Two devices.",
    ],
    "ddp.attempts": lambda make: [make_attempts(make), 5],
    "experts.imbalance": lambda make: [
        {name: make("ep") for name in ("plain", "balanced")},
        {"plain": [1.0, 2.0, 3.9], "balanced": [1.0, 1.5, 1.1]},
        4.0,
    ],
    "horovod.timeline": lambda make: [HOROVODS_STEP, make("horovod")],
    "horovod.ring": lambda make: [make_ring()],
    "horovod.ring: 4 ranks": lambda make: [make_ring(4)],
    "horovod.published_scaling": lambda make: [read_published("horovod")],
    "hosts.link_sweep": lambda make: [
        {
            place: (make("sweep"), [{"bytes": 2**k, "seconds": 2**k / speed} for k in (10, 16, 20)])
            for place, speed in (("inside a host", 1e9), ("over the link", 2e7))
        },
        25e6,
    ],
    "hsdp.two_hosts": lambda make: ["200mbit"],
    "basics.batch_shares": lambda make: [{1: [[0, 1, 2, 3]], 2: [[0, 2], [1, 3]]}],
    "pipelines.one_step": lambda make: [records.write_actions(make("mp"), STEP_OF_TWO_RANKS)],
    "pipelines.memory_needs": lambda make: [memory.course_gpt_needs(), memory.gpu_memory()],
    "pipelines.stage_costs": lambda make: [[{"stage": f"stage {k}", **STAGE} for k in range(4)], 1],
    "pipelines.gantt": lambda make: [
        {"planned": plan_schedule("1f1b"), "other": plan_schedule("gpipe")},
        "Two schedules",
    ],
    "pipelines.planned": lambda make: ["interleaved", "gpipe"],
    "pipelines.peak_memory": lambda make: [PEAKS, "Counted on another machine; recorded."],
    "predicted.steps": lambda make: ["slow", PLANS],
    "saved_checkpoints.pieces": lambda make: ["a.weight", (8, 6), HALVES],
    "saved_checkpoints.resumed_losses": lambda make: [
        make("cpu", 1, losses=(3.0, 2.0, 1.5, 1.2)),
        [make("fsdp", losses=(3.0, 2.0)), make("fsdp", steps=make_rows(2, (1.5, 1.3)))],
        ["begun", "resumed"],
        "A training that was stopped",
    ],
    "saved_checkpoints.step_times": lambda make: [
        {name: make_saving(make) for name in ("one file", "pieces")},
        2,
    ],
    "saved_checkpoints.lost_time": lambda make: [[1, 60], 3600.0, 360],
    "serving.seconds_by_length": lambda make: [
        generation.Speed(
            [
                {"length": n, "again_seconds": s, "decode_seconds": s / n}
                for n, s in ((8, 0.01), (16, 0.02))
            ]
        )
    ],
    "single_device.number_formats": lambda make: [{"float32": (8, 23), "bfloat16": (8, 7)}],
    "single_device.fp16_fates": lambda make: [{"weights": FATES}, [0, 16], "Measured here."],
    "single_device.activations_in_step": lambda make: [6, 10e6, 1e6],
    "tensor_parallel.ring": lambda make: [ORDERS],
    "zero_stages.rank_memory": lambda make: [
        {f"stage {stage}": KINDS_HELD for stage in (1, 2)},
        {"stage 1": 10e6},
        [make("zero", 4)],
    ],
    "zero_stages.gathers": lambda make: [
        {"seconds": 0.009, "groups": {"root": [("all-gather", 0, 1)], "block0": FSDP_PHASES}},
        make("fsdp", 4),
    ],
    "zero_stages.published_memory": lambda make: [
        dict.fromkeys(range(4), {"parameters": 15e9}),
        read_published("zero_figure1"),
    ],
    "plots.roofline": lambda make: [records.make_roofline()],
    "plots.roofline: GPU": lambda make: [
        records.make_roofline(
            device="cuda", peak_flops_per_second=5e13, bandwidth_bytes_per_second=3e12
        )
    ],
    "plots.roofline: above the roof and in its corner": lambda make: [
        records.make_roofline(
            OPERATIONS, peak_flops_per_second=771e9, bandwidth_bytes_per_second=7e9
        )
    ],
    "plots.all_reduce_sweep": lambda make: make_sweep(make, straight),
    "plots.all_reduce_sweep: bent": lambda make: make_sweep(make, bent),
    "plots.all_reduce_sweep: GPUs": lambda make: make_sweep(make, bent, "nccl"),
    "plots.communication_roofline": lambda make: [communication.published()],
    "predicted.memory_by_part": lambda make: [forecasts.memory_by_part()],
    "predicted.memory_by_part: two models": lambda make: [
        forecasts.memory_by_part(forecasts.MODELS[:2])
    ],
    "predicted.memory_by_part: one bar": lambda make: [
        forecasts.Table(forecasts.memory_by_part(["Llama 2 7B"]).rows[1:2], "Nothing is measured")
    ],
    "predicted.feasible_plans": lambda make: [forecasts.list_plans("Mixtral 8x7B", gpus=128)],
    "predicted.feasible_plans: none fits": lambda make: [
        forecasts.list_plans("Llama 3 405B", gpus=16)
    ],
    "predicted.chosen_plan": lambda make: [
        plans := forecasts.list_plans("Mixtral 8x7B"),
        plans[-1],
    ],
    "predicted.what_breaks": lambda make: [forecasts.grow("Llama 3 405B")],
    "predicted.predicted_and_published": lambda make: [forecasts.published_beside_predicted()],
    "plots.checkpoint_interval": lambda make: [forecasts.checkpoint_intervals()],
}
for latency in (0.0004, 0.9):
    GIVEN[f"serving.latencies: {latency} s"] = lambda make, latency=latency: [
        serving_lab.describe_measurement(),
        {"closed loop, 1 client": make_load(latency), "open loop, 100/s": make_load(0.5)},
    ]
    GIVEN[f"serving.knee: {latency} s"] = lambda make, latency=latency: [
        serving_lab.describe_measurement(),
        {rate: make_load(latency * (1 + rate / 50), slow=rate // 20) for rate in (10, 25, 50, 90)},
    ]
    GIVEN[f"serving.ablation: {latency} s"] = lambda make, latency=latency: [
        serving_lab.describe_measurement(),
        make_answers(latency),
    ]


def draw(name: str, make=None) -> Figure:
    """Draw one of FIGURES. make: the fixture make_run, for a figure of runs."""
    function = list_figures()[name.partition(":")[0]]
    given = GIVEN[name](make) if name in GIVEN else []
    peak = {"peak_flops_per_second": 1e11} if name == "plots.achieved" else {}
    return function(*given, **peak)


BY_THEMSELVES = [name for name, function in list_figures().items() if _takes_nothing(function)]
FIGURES = {name: functools.partial(draw, name) for name in (*GIVEN, *BY_THEMSELVES)}


# What a figure says and shows


def read_foot(figure: Figure) -> str:
    """What stands at the figure's foot, on one line."""
    return " ".join(figure.get_supxlabel().split())


def read_texts(figure: Figure) -> str:
    """All that is written in the figure."""
    return "\n".join(text.get_text() for text in legible.texts(figure))


def list_bars(figure: Figure) -> list[float]:
    """The lengths of the first axes' horizontal bars in the order in which they were drawn."""
    return [bar.get_width() for bar in figure.axes[0].patches]
