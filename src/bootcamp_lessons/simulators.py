"""Simulations with controls: `simulators.collective()`, `.ddp_step()`, `.memory()`,
`.pipeline_schedule()`, `.planner()`.

Each shows controls and a picture that follows them, and returns the controls by name. The pictures
are those of bootcamp_lessons.diagrams; nothing is launched.
"""

from bootcamp.theory import collectives, pipeline_schedules, published
from bootcamp.theory import memory as memory_theory
from bootcamp.widgets import planner as planner_widget
from bootcamp.widgets.controls import choice, follow, slider, steps
from bootcamp_lessons import planning
from bootcamp_lessons.diagrams import (
    collective_steps,
    memory_by_kind,
    pipeline_gantt,
    predicted_ddp_step,
)

GIGABITS = (1, 10, 25, 100, 200, 400)  # a second: what networks are sold with
MILLISECONDS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
MICROSECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
NO_RUN = "none"


def collective(
    collective: str = "all-reduce", algorithm: str = "ring", ranks: int = 4, step: int = 2
) -> dict:
    """A collective step by step."""
    last = len(collectives.plan(collective, algorithm, ranks))
    algorithms = collectives.ALGORITHMS

    def react(moved: str, controls: dict) -> None:
        if moved == "collective":  # not every algorithm does every collective
            controls["algorithm"].options = algorithms[controls["collective"].value]
        chosen = [controls[name].value for name in ("collective", "algorithm", "ranks")]
        controls["step"].max = len(collectives.plan(*chosen))

    return follow(
        collective_steps.step,
        react,
        collective=choice("collective", list(algorithms), collective),
        algorithm=choice("algorithm", list(algorithms[collective]), algorithm),
        ranks=slider("ranks", ranks, collectives.RANKS[0], collectives.RANKS[-1]),
        step=slider("step", step, 0, last),
    )


def ddp_step(
    model: str = "GPT-2, 124 M", bucket: str = predicted_ddp_step.DEFAULT, ranks: int = 8
) -> dict:
    """A predicted step of DDP."""
    millis = [(f"{count:,} ms", count / 1e3) for count in MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in MICROSECONDS]
    return follow(
        predicted_ddp_step.step,
        bucket=steps("bucket cap, MiB", bucket, list(predicted_ddp_step.CAPS)),
        model=choice("model", list(predicted_ddp_step.MODELS), model),
        ranks=steps("ranks", ranks, doubling(2, 1024)),
        bytes_per_second=choice("link", list(links().items()), links()["100 Gbit/s"]),
        latency=steps("latency", 20 / 1e6, micros),
        compute_seconds=steps("forward + backward", 200 / 1e3, millis),
    )


def doubling(least: int, most: int) -> list[int]:
    return [least * 2**power for power in range((most // least).bit_length())]


def links() -> dict[str, float]:
    """Bytes per second that a rank sends over some links, by name."""
    rates = {f"{gigabits} Gbit/s": gigabits * 1e9 / 8 for gigabits in GIGABITS}
    for row in published.table("network"):
        if row["link"].startswith("NVLink"):
            rates[row["link"]] = float(row["gb_s_per_gpu"]) * 1e9
    return rates


def memory(model: str = "7.5 B", ranks: int = 64) -> dict:
    """Memory of one rank by kind, for each strategy."""
    precisions = [("bf16, state in fp32", "bf16 mixed"), ("fp32", "fp32")]
    batches = [("0 (state alone)", 0), *((str(size), size) for size in doubling(1, 32))]
    return follow(
        memory_by_kind.held,
        model=choice("model", list(memory_theory.models()), model),
        ranks=steps("ranks", ranks, doubling(1, 1024)),
        precision=choice("precision", precisions, "bf16 mixed"),
        samples=steps("micro-batch", 1, batches),
        kept=choice("activations kept", list(memory_theory.KEPT), memory_theory.KEPT[1]),
        shard=steps("HSDP's rows of", 8, doubling(2, 64)),
    )


def pipeline_schedule(
    measured: dict[str, list] | None = None,
    run: str = NO_RUN,
    schedule: str = "1f1b",
    ranks: int = 4,
    micro_batches: int = 8,
) -> dict:
    """A pipeline's schedule, its bubble and its activations.

    measured: {name: spans} of runs that can be drawn below the theory. run: the one to begin with,
    which brings its own schedule, ranks and micro-batches.
    """
    measured = measured or {}
    first = {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}
    if run != NO_RUN:
        first = choices_of(measured[run])

    def react(moved: str, controls: dict) -> None:
        spans = measured.get(controls["run"].value)
        if spans and moved == "run":  # a run brings its own choices
            for name, value in choices_of(spans).items():
                controls[name].value = value
        elif spans and {name: controls[name].value for name in first} != choices_of(spans):
            controls["run"].value = NO_RUN  # these choices are not that run's

    return follow(
        lambda run, **chosen: pipeline_gantt.explored(**chosen, measured=measured.get(run)),
        react,
        schedule=choice("schedule", list(pipeline_schedules.SCHEDULES), first["schedule"]),
        ranks=slider("ranks", first["ranks"], 1, 8),
        micro_batches=slider("micro-batches", first["micro_batches"], 1, 32),
        run=choice("measured", [NO_RUN, *measured], run),
    )


def choices_of(spans: list) -> dict:
    """The schedule, ranks and micro-batches of a measured run, from its actions.

    Raises ValueError if it followed no schedule's plan.
    """
    if (schedule := pipeline_schedules.which(spans)) is None:
        raise ValueError("these spans follow no schedule's plan: the run did something else")
    micro_batches = 1 + max(span.action.micro_batch for span in spans)
    ranks = len(pipeline_schedules.by_rank(spans))
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}


def planner(model: str = "Llama 3 70B", gpu: str = "H100 80GB", gpus: int = 256, **plan) -> dict:
    """A plan's memory and speed among all plans of a model on a cluster.

    plan: tensor, pipeline, zero, micro_batch, recompute to begin with.
    """
    first = {"tensor": 1, "pipeline": 1, "zero": 3, "micro_batch": 1, "recompute": "none"}
    first |= {"model": model, "kind": gpu, "gpus": gpus, "host_gb_s": 400}
    models, kinds = planning.models(), list(planning.GPUS)
    tables, counts = planning.with_plan, doubling(8, 16384)
    return planner_widget.show(tables, models, kinds, counts, planning.LINKS, **first | plan)
