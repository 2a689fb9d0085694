"""Simulations with controls: `simulators.collective()`, `.ddp_step()`, `.memory()`,
`.pipeline_schedule()`, `.planner()`.

Each shows controls and a picture that follows them. Nothing is launched. The first four take the
initial values of controls by name, and need anywidget; without it they show their initial choice as
a table. They return the explorer, whose `choice` has the values of its controls.
"""

import contextlib
import functools
import os

from IPython.display import display

from bootcamp.launcher import progress
from bootcamp.widgets import controls
from bootcamp_lessons import explorers, forecasts
from bootcamp_lessons.diagrams import predicted

VARIABLE = "BOOTCAMP_ANYWIDGET"  # 0: this kernel has anywidget, the page that shows it has not


def _explore(kind: str, **initial):
    """Show an explorer and return it; where there is no anywidget, show a table."""
    data = explorers.make_data(kind, **initial)
    fallback = explorers.make_fallback_table(kind, data)
    if progress.load_widgets() and os.environ.get(VARIABLE) != "0":
        with contextlib.suppress(ImportError):
            from bootcamp_lessons import explorer_widget

            return explorer_widget.show(kind, data, fallback)
    print(f"Without widgets this is one choice; simulators.{kind}(...) shows another.")
    display(fallback)
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
    """Show a plan among all plans of a model on a cluster; plan: the controls' initial values."""
    initial = {"model": "Llama 3 70B", "kind": "H100 80GB", "gpus": 256, "host_gb_s": 400}
    initial |= {"tensor": 1, "pipeline": 1, "zero": 3, "micro_batch": 1, "recompute": "none"} | plan
    sliders = {"gpus": ("GPUs", explorers.doubling(8, 16384)), **PLAN}
    return controls.follow(
        lambda **choices: predicted.chosen_plan(*forecasts.add_plan(**choices)),
        model=controls.choice("model", forecasts.list_models(), initial["model"]),
        kind=controls.choice("GPU", list(forecasts.GPUS), initial["kind"]),
        **{
            name: controls.steps(label, initial[name], list(sizes))
            for name, (label, sizes) in sliders.items()
        },
        recompute=controls.choice(
            "recompute", ["none", "selective op", "full"], initial["recompute"]
        ),
        host_gb_s=controls.choice("link", list(forecasts.LINKS.items()), initial["host_gb_s"]),
    )
