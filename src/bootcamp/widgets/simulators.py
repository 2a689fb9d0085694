"""Things to move, one for a cell: `playground.collective()`, `.ddp_step()`, `.memory()`.

Each shows controls and a picture that follows them, and returns the controls by name. What is drawn
stands in bootcamp.drawing.diagrams; nothing is launched.
"""

import csv

from bootcamp.drawing.diagrams import collective as collectives
from bootcamp.drawing.diagrams import ddp_timeline
from bootcamp.drawing.diagrams import memory as memories
from bootcamp.paths import PACKAGE
from bootcamp.theory import collectives as collective_steps
from bootcamp.theory import memory as memory_theory
from bootcamp.widgets import controls as widget

GIGABITS = (1, 10, 25, 100, 200, 400)  # a second: what networks are sold with
MILLISECONDS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
MICROSECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def collective(
    collective: str = "all-reduce", algorithm: str = "ring", ranks: int = 4, step: int = 2
) -> dict:
    """A collective step by step."""
    last = len(collective_steps.plan(collective, algorithm, ranks))
    algorithms = collective_steps.ALGORITHMS

    def react(moved: str, controls: dict) -> None:
        if moved == "collective":  # not every algorithm does every collective
            controls["algorithm"].options = algorithms[controls["collective"].value]
        names = ("collective", "algorithm", "ranks")
        chosen = [controls[name].value for name in names]
        controls["step"].max = len(collective_steps.plan(*chosen))

    return widget.follow(
        collectives.step,
        react,
        collective=widget.choice("collective", list(algorithms), collective),
        algorithm=widget.choice("algorithm", list(algorithms[collective]), algorithm),
        ranks=widget.slider("ranks", ranks, *_ends(collective_steps.RANKS)),
        step=widget.slider("step", step, 0, last),
    )


def _ends(numbers: range) -> tuple[int, int]:
    return numbers[0], numbers[-1]


def ddp_step(model: str = "GPT-2, 124 M", bucket: str = ddp_timeline.DEFAULT) -> dict:
    """A predicted step of DDP."""
    millis = [(f"{count:,} ms", count / 1e3) for count in MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in MICROSECONDS]
    return widget.follow(
        ddp_timeline.step,
        bucket=widget.steps("bucket cap, MiB", bucket, list(ddp_timeline.CAPS)),
        model=widget.choice("model", list(ddp_timeline.MODELS), model),
        ranks=widget.steps("ranks", 8, _doubling(2, 1024)),
        bytes_per_second=widget.choice("link", list(links().items()), links()["100 Gbit/s"]),
        latency=widget.steps("latency", 20 / 1e6, micros),
        compute_seconds=widget.steps("forward + backward", 200 / 1e3, millis),
    )


def _doubling(least: int, most: int) -> list[int]:
    return [least * 2**power for power in range((most // least).bit_length())]


def links() -> dict[str, float]:
    """Bytes per second that a rank sends over some links, by name."""
    rates = {f"{gigabits} Gbit/s": gigabits * 1e9 / 8 for gigabits in GIGABITS}
    with open(PACKAGE / "theory" / "published" / "network.csv") as file:
        for row in csv.DictReader(file):
            if row["link"].startswith("NVLink"):
                rates[row["link"]] = float(row["gb_s_per_gpu"]) * 1e9
    return rates


def memory(model: str = "7.5 B", ranks: int = 64) -> dict:
    """Memory of one rank by kind, for each strategy."""
    precisions = [("bf16, state in fp32", "bf16 mixed"), ("fp32", "fp32")]
    batches = [("0 (state alone)", 0), *((str(size), size) for size in _doubling(1, 32))]
    return widget.follow(
        memories.held,
        model=widget.choice("model", list(memory_theory.models()), model),
        ranks=widget.steps("ranks", ranks, _doubling(1, 1024)),
        precision=widget.choice("precision", precisions, "bf16 mixed"),
        samples=widget.steps("micro-batch", 1, batches),
        kept=widget.choice("activations kept", list(memory_theory.KEPT), memory_theory.KEPT[1]),
        shard=widget.steps("HSDP's rows of", 8, _doubling(2, 64)),
    )
