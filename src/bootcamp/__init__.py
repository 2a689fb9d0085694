"""The package under the scripts and notebooks of the course, by names that are loaded when used.

Notebooks import from here: `from bootcamp import launch, runs, check, plots`. A rank, or a machine
without Jupyter, loads only what it uses. bootcamp_lessons, the content of single lessons, imports
this package, which names it here alone.
"""

import difflib
import importlib

# name -> the module it comes from, of this package or of the lessons; after a colon an attribute
FRONT_DOOR = {
    # runs
    "launch": "launcher.launch:launch",
    "Options": "launcher.launch:Options",
    "warm_up": "launcher.launch:warm_up",
    "run_command": "launcher.launch:run_command",
    "gpu_count": "launcher.launch:gpu_count",
    "default_ranks": "launcher.launch:default_ranks",
    "available": "launcher.launch:available",
    "LaunchError": "launcher.launch:LaunchError",
    "RunRefused": "launcher.launch:RunRefused",
    "RankFailed": "launcher.launch:RankFailed",
    "RunHung": "launcher.launch:RunHung",
    "live": "launcher.live_ranks",
    "orphans": "launcher.orphans:orphans",
    "hang": "launcher.hang",
    # records
    "runs": "records.runs",
    "Run": "records.runs:Run",
    "Table": "table:Table",
    # proofs and measurements
    "check": "experiments.equality",
    "claim": "experiments.claims",
    "trial": "experiments.claims:trial",
    "replay": "experiments.replay",
    "roofline": "experiments.roofline",
    # scripts as texts
    "strategies": "scripts.strategies",
    "variant": "scripts.diff:variant",
    "script_diff": "scripts.diff:script_diff",
    # figures and widgets
    "plots": "drawing.plots",
    "diff_viewer": "widgets.diff_viewer",
    "monitor": "widgets.monitor",
    "simulators": "bootcamp_lessons.simulators",
    # the classroom
    "predict": "classroom.predict:predict",
    "predictions": "classroom.prediction_scores",
    "exercise": "bootcamp_lessons.exercise",
    "clinic": "bootcamp_lessons.labs.clinic",
    "errors": "classroom.errors",
    "capstone": "bootcamp_lessons.capstone",
    "plan_contest": "bootcamp_lessons.plan_contest",
    "journal": "classroom.journal",
}

__all__ = list(FRONT_DOOR)


def __getattr__(name: str):
    if name not in FRONT_DOOR:
        near = difflib.get_close_matches(name, FRONT_DOOR, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(FRONT_DOOR)}."
        raise AttributeError(f"bootcamp has no {name!r}: {hint}", name=name, obj=None)
    place, _, attribute = FRONT_DOOR[name].partition(":")
    lessons = place.startswith("bootcamp_lessons.")
    module = importlib.import_module(place if lessons else f"{__name__}.{place}")
    found = globals()[name] = getattr(module, attribute) if attribute else module
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
