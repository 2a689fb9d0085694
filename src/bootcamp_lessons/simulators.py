"""Simulations with controls: `simulators.collective()`, `.ddp_step()`, `.memory()`,
`.pipeline_schedule()`, `.planner()`.

Each shows controls and a picture that follows them. Nothing is launched. The first four begin with
the values of controls that they are given by name, and need anywidget; without it their first
choice is a table. They return the explorer, whose `choice` has the values of its controls.
"""

import contextlib
import functools
import os

from IPython.display import display

from bootcamp.drawing import plots
from bootcamp.launcher import progress
from bootcamp.widgets import controls
from bootcamp_lessons import explorers, planning

VARIABLE = "BOOTCAMP_ANYWIDGET"  # 0: this kernel has anywidget, the page that shows it has not


def _explore(kind: str, **first):
    """Show an explorer and return it; where there is no anywidget, show its first choice."""
    data = explorers.data(kind, **first)
    still = explorers.still(kind, data)
    if progress.widgets() and os.environ.get(VARIABLE) != "0":
        with contextlib.suppress(ImportError):
            from bootcamp_lessons import explorer_widget

            return explorer_widget.show(kind, data, still)
    print(f"Without widgets this is one choice; simulators.{kind}(...) shows another.")
    display(still)
    return None


collective, ddp_step, memory, pipeline_schedule = (
    functools.partial(_explore, kind)
    for kind in ("collective", "ddp_step", "memory", "pipeline_schedule")
)


PLAN = {  # controls of a plan: what they are called, and over what they slide
    "tensor": ("tensor", (1, 2, 4, 8)),
    "pipeline": ("pipeline", (1, 2, 4, 8, 16, 32, 64)),
    "zero": ("ZeRO", (0, 1, 2, 3)),
    "micro_batch": ("micro-batch", (1, 2, 4, 8)),
}


def planner(**plan) -> dict:
    """A plan's memory and speed among all plans of a model on a cluster.

    plan: values of the controls to begin with.
    """
    first = {"model": "Llama 3 70B", "kind": "H100 80GB", "gpus": 256, "host_gb_s": 400}
    first |= {"tensor": 1, "pipeline": 1, "zero": 3, "micro_batch": 1, "recompute": "none", **plan}

    def drawn(**choices):
        return plots.chosen_plan(*planning.with_plan(**choices))

    sliders = {"gpus": ("GPUs", explorers.doubling(8, 16384)), **PLAN}
    recomputed = ["none", "selective op", "full"]
    return controls.follow(
        drawn,
        model=controls.choice("model", planning.models(), first["model"]),
        kind=controls.choice("GPU", list(planning.GPUS), first["kind"]),
        **{
            name: controls.steps(label, first[name], list(sizes))
            for name, (label, sizes) in sliders.items()
        },
        recompute=controls.choice("recompute", recomputed, first["recompute"]),
        host_gb_s=controls.choice("link", list(planning.LINKS.items()), first["host_gb_s"]),
    )
