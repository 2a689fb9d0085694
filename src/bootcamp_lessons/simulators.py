"""Simulations with controls: `simulators.collective()`, `.ddp_step()`, `.memory()`,
`.pipeline_schedule()`, `.planner()`.

Each shows controls and a picture that follows them, and returns the controls by name. Nothing is
launched. The first four begin with what explorers.py's functions of these names take; explorers.js
draws them where the page has anywidget, and bootcamp_lessons.diagrams elsewhere.
"""

import os

from bootcamp.launcher import progress
from bootcamp.widgets import planner as planner_widget
from bootcamp.widgets.controls import choice, drawn, follow, steps
from bootcamp_lessons import explorers, planning
from bootcamp_lessons.diagrams import (
    collective_steps,
    memory_by_kind,
    pipeline_gantt,
    predicted_ddp_step,
)

VARIABLE = "BOOTCAMP_ANYWIDGET"  # 0: this kernel has anywidget, the page that shows it has not


def collective(*given, **first) -> dict:
    """A collective step by step."""

    def draw(way: str, ranks: int, step: int):
        return collective_steps.step(*explorers.ways()[way], ranks, step)

    return _explorer("collective", draw, explorers.collective(*given, **first))


def ddp_step(*given, **first) -> dict:
    """A predicted step of DDP."""
    return _explorer("ddp_step", predicted_ddp_step.step, explorers.ddp_step(*given, **first))


def memory(*given, **first) -> dict:
    """Memory of one rank by kind, for each strategy."""
    return _explorer("memory", memory_by_kind.held, explorers.memory(*given, **first))


def pipeline_schedule(measured: dict[str, list] | None = None, *given, **first) -> dict:
    """A pipeline's schedule, its bubble and its activations; below it a measured run."""

    def draw(run: str = explorers.NO_RUN, **chosen):
        return pipeline_gantt.explored(**chosen, measured=(measured or {}).get(run))

    data = explorers.pipeline_schedule(measured, *given, **first)
    return _explorer("pipeline_schedule", draw, data)


def _explorer(kind: str, draw, data: dict) -> dict:
    """Show an explorer in the way that this page can; its controls by name."""
    first = explorers.first_choice(data)
    if widget := _live():
        return widget.show(kind, data, drawn(draw, first))
    controls = {}
    for one in data["controls"]:
        options, make = [tuple(pair) for pair in one["options"]], steps if one["slides"] else choice
        controls[one["name"]] = make(one["label"], options=options, value=first[one["name"]])

    def react(moved: str, controls: dict) -> None:
        now = {name: control.value for name, control in controls.items()}
        for name, value in explorers.moved(data, now, moved).items():
            controls[name].value = value

    return follow(draw, react, **controls)


def _live():
    """What shows an explorer as an anywidget; None where that is missing or turned off."""
    if not progress.widgets() or os.environ.get(VARIABLE) == "0":
        return None
    try:
        from bootcamp_lessons import explorer_widget
    except ImportError:
        return None
    return explorer_widget


def planner(model: str = "Llama 3 70B", gpu: str = "H100 80GB", gpus: int = 256, **plan) -> dict:
    """A plan's memory and speed among all plans of a model on a cluster.

    plan: tensor, pipeline, zero, micro_batch, recompute to begin with.
    """
    first = {"tensor": 1, "pipeline": 1, "zero": 3, "micro_batch": 1, "recompute": "none"}
    first |= {"model": model, "kind": gpu, "gpus": gpus, "host_gb_s": 400}
    models, kinds = planning.models(), list(planning.GPUS)
    tables, counts = planning.with_plan, explorers.doubling(8, 16384)
    return planner_widget.show(tables, models, kinds, counts, planning.LINKS, **first | plan)
