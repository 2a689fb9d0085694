"""Simulations with controls: `simulators.collective()`, `.ddp_step()`, `.memory()`,
`.pipeline_schedule()`, `.planner()`.

Each shows controls and a picture that follows them, and returns the controls by name. Nothing is
launched. The first four begin with what explorers.py's functions of these names take, and need
anywidget; without it their first choice is a table.
"""

import functools
import os

from bootcamp.launcher import progress
from bootcamp.widgets import planner as planner_widget
from bootcamp_lessons import explorers, planning

VARIABLE = "BOOTCAMP_ANYWIDGET"  # 0: this kernel has anywidget, the page that shows it has not


def _explorer(kind: str, *given, **first) -> dict:
    """Show an explorer, or its first choice as a table; the controls by name, if there are any."""
    data = explorers.KINDS[kind](*given, **first)
    still = explorers.still(kind, data)
    if widget := _live():
        return widget.show(kind, data, still)
    from IPython.display import display

    print(f"Without widgets this is one choice; simulators.{kind}(...) shows another.")
    display(still)
    return {}


collective, ddp_step, memory, pipeline_schedule = (
    functools.partial(_explorer, kind)
    for kind in ("collective", "ddp_step", "memory", "pipeline_schedule")
)


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
