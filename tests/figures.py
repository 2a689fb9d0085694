"""Figures whose values are hard to draw, and what they say of them.

Texts are far from each other or in each other's way, runs are of several machines, or none fits.
All other figures are measured where a lesson or a slide shows them: see legible.py.
"""

import legible
import records
from matplotlib.figure import Figure

from bootcamp.drawing import plots
from bootcamp_lessons import forecasts
from bootcamp_lessons.diagrams import hsdp, predicted, saved_checkpoints, scaling, single_device

SHARED = "shared with another run, so the times mean nothing"

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


def make_rows(first: int, losses, attempt: int = 0, seconds=None) -> list[dict]:
    """The rows of steps.jsonl from step `first` on."""
    seconds = seconds or [0.1] * len(losses)
    same = {"attempt": attempt, "samples": 32, "tokens": 64}
    return [
        {"step": first + k, "loss": loss, "seconds": took, **same}
        for k, (loss, took) in enumerate(zip(losses, seconds, strict=True))
    ]


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


OPERATIONS = {  # on a roofline: above the roof, and in its corner
    "cached": (0.08, 4e9, True),
    "product number 0": (0.1, 0.7e9, False),
    "product number 1": (60, 290e9, False),
    "product number 2": (110, 763e9, False),
    "product number 3": (120, 820e9, False),
}

# Drawings: a figure, and words that it says, on it or in its alternative


def draw_losses(make):
    """Losses of many runs, of equal ones, and of some without a number."""
    yield (
        plots.loss_curves(
            make("cpu", 1),
            *(make(name, ranks) for name in ("ddp", "zero") for ranks in (1, 2)),
            make_crowded(make),
        ),
        "",
    )
    failed = [
        make(
            "ddp",
            ranks,
            cpu=f"Processor {ranks} of another machine",
            losses=[4.0] + 5 * [loss],
            status="failed",
        )
        for ranks, loss in zip((1, 2, 4, 8, 16), (3.0, *[float("nan")] * 4), strict=True)
    ]
    yield (
        plots.loss_curves(make("cpu", 1), *failed),
        "ddp, 2 ranks (CPU), failed: the loss is not a number in 5 steps, from 1",
    )
    resumed = [make("fsdp", losses=(3.0, 2.0)), make("fsdp", steps=make_rows(2, (1.5, 1.3)))]
    yield (
        saved_checkpoints.resumed_losses(
            make("cpu", 1, losses=(3.0, 2.0, 1.5, 1.2)), resumed, ["begun", "resumed"], "Stopped"
        ),
        "resumed: steps 2 to 3, at most 1.0e-01 from the baseline",
    )


def draw_throughput(make):
    """Speeds of several machines, of one whose name is long, and of twins."""
    several = [
        make("cpu", 1, 408.0),
        make("ddp", 2, [1.0, 1.0, 1.0, 600.0, 800.0, 900.0]),
        make_crowded(make, 555.0),
        make("ddp_by_hand", 8, 1200.0, device="cuda"),
    ]
    yield plots.throughput(*several), "800 samples/s (700 to 850) on 2 cores"
    shared = plots.throughput(make("cpu", 1), make("ddp", 2, shared=True))
    yield shared, "torch 2.99.0; measured here, some on shared cores."
    name = " with a name that goes on" * 4
    yield plots.throughput(*(make("ddp", n, cpu=f"Processor {n}{name}") for n in (1, 2))), name
    twins = [make("model_parallel", 2, 99.0 * n, 32 * n, device="cuda") for n in range(1, 9)]
    yield plots.throughput(*twins), ""
    speeds = [make("cpu", 1, 0.3), make("ddp", 2, 120.0), make_crowded(make, 3860.0)]
    yield (
        plots.achieved(*speeds, peak_flops_per_second=1e11),
        "ddp, 4 ranks (CPU, more ranks than cores) 1,930 % (3.860 TFLOP/s of 200 G",
    )


def draw_scaling(make):
    """Curves of many strategies, of runs on shared cores, slower ones, and what is left out."""
    yield (
        plots.scaling(*make_growing(make)),
        "zero 1.87 on 2, 3.48 on 4, 6.50 on 8; hsdp 1.74 on 2",
    )
    yield (
        draw_left_out(make),
        "Left out: cpu on 1 rank. The curves begin with other runs on 1 rank. Left out: ddp on 4 "
        "ranks. Their cores were shared with another run. Left out: ddp on 4 ranks. More ranks "
        "than cores measure no",
    )
    yield plots.scaling(make("ddp", 1, shared=True), make("ddp", 2)), SHARED
    for speeds in ((95.0, 104.0), (2.0, 5000.0, 100.0)):
        yield scaling.speed_up_by_batch(make_pairs(make, *speeds)), ""
    shared = make_pairs(make, 95.0, 180.0, 190.0, 199.0, shared=True)
    yield scaling.speed_up_by_batch(shared), SHARED


def draw_left_out(make) -> Figure:
    """The scaling of runs of which some can't be compared."""
    return plots.scaling(
        make("cpu", 1, 50.0),
        make("ddp", 1),
        make("ddp", 2, 150.0),
        make("ddp", 4, shared=True),
        make_crowded(make),
    )


def draw_bytes(make):
    """Memory that ranks held, and bytes that they sent."""
    yield plots.memory(make("cpu", 1), make("ddp", 2), make_crowded(make)), "process peak 4.32 GB"
    yield (
        draw_memory_of_gpus(make),
        "each of 8 ranks (GPU) 100 MB (parameters 10 MB, gradients 20 MB",
    )
    yield (
        draw_sent_bytes(make),
        "ddp, 4 ranks (CPU, more ranks than cores): formula 30 MB, counted 5 MB; "
        "ddp, 4 ranks (CPU): formula 30 MB, not counted here",
    )
    sizes = {2570.0: 17_800, 6100.0: 4_630_000, 8830.0: 4_800_000, 84e3: 18_200_000}
    yield single_device.batch_curve(make_batches(make, sizes)), ""
    yield single_device.batch_curve(make_batches(make, {4630.0: 0, 4800.0: 0})), ""


def draw_memory_of_gpus(make) -> Figure:
    """What each of eight GPUs held."""
    return plots.memory(make("ddp_by_hand", 8, device="cuda"))


def draw_sent_bytes(make) -> Figure:
    """The bytes of one rank, of four, and of four that counted none."""
    return plots.sent_bytes(make("ddp", 1, sent=0.0), make_crowded(make), make("ddp", 4, sent=None))


def draw_steps(make):
    """Where the seconds of a step went."""
    yield (
        plots.timeline(make("mp", 8, cores=2, traced=range(7))),
        "No trace was recorded of rank 7.",
    )
    yield (
        hsdp.step_seconds(
            {"ddp": make("ddp", 4, 1.0), "fsdp": make("fsdp", 4, 1000.0)},
            {name: make(name, 4, 500.0, link="200mbit") for name in ("ddp", "fsdp")},
            {"ddp": 0.01, "fsdp": 0.19},
        ),
        "ddp 32 s open, 0.064 s at 200mbit, of which the link by formula 0.010",
    )


def draw_limits(make):
    """Rooflines and lines through sweeps of CPUs and GPUs; plans of which none fits."""
    yield (
        plots.roofline(records.make_roofline()),
        "up-projection 90 %; attention 60 %; LayerNorm 90 %; softmax and loss 85 %",
    )
    gpu = {"device": "cuda", "peak_flops_per_second": 5e13, "bandwidth_bytes_per_second": 3e12}
    yield plots.roofline(records.make_roofline(**gpu)), ""
    beyond = {"peak_flops_per_second": 771e9, "bandwidth_bytes_per_second": 7e9}
    yield plots.roofline(records.make_roofline(OPERATIONS, **beyond)), ""
    yield (
        plots.all_reduce_sweep(*make_sweep(make, straight)),
        "50 µs (alpha) + bytes at 2 GB/s (1/beta). On",
    )
    yield (
        plots.all_reduce_sweep(*make_sweep(make, bent)),
        "10 GB/s (1/beta), those beyond 1 MiB at 1.1 GB/s. On",
    )
    yield plots.all_reduce_sweep(*make_sweep(make, bent, "nccl")), ""
    yield predicted.feasible_plans(forecasts.list_plans("Llama 3 405B", gpus=16)), ""


DRAWINGS = (draw_losses, draw_throughput, draw_scaling, draw_bytes, draw_steps, draw_limits)


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
