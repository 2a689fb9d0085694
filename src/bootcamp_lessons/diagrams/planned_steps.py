"""Predicted seconds of planned steps, part by part."""

import textwrap

from matplotlib.figure import Figure

from bootcamp.costs.planner import WORDS
from bootcamp.drawing.charts import BOLD, WHITE, handles, margin, marker_line, rows, stack_bars
from bootcamp.drawing.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp_lessons import plan_contest

LOOKS = {
    "compute": (BLUE, ""),
    plan_contest.AGAIN: (GREY, "\\\\"),
    "tensor and context": (GREEN, ".."),
    "gradients and parameters": (ORANGE, "//"),
    "pipeline": (PURPLE, "xx"),
    "the rest": (YELLOW, ""),
}
GROUPS = {
    WORDS["tensor"]: "tensor and context",
    WORDS["context"]: "tensor and context",
    WORDS["data"]: "gradients and parameters",
    WORDS["pipeline"]: "pipeline",
    WORDS["bubble"]: "pipeline",
}
MOST_BARS = 10
CUT_AT = 3.0  # times the fastest


def group_parts(parts: dict[str, float]) -> dict[str, float]:
    """Return {name in LOOKS: seconds}."""
    found = dict.fromkeys(LOOKS, 0.0)
    for name, seconds in parts.items():
        found[name if name in LOOKS else GROUPS.get(name, "the rest")] += seconds
    return found


@styled
def steps(task: str, plans: dict[str, dict] | None = None) -> Figure:
    """Draw the plans {name: knobs} that fit a task, else its board's; ValueError if none does."""
    given = {
        name: plan_contest.judge(knobs, plan_contest.TASKS[task])
        for name, knobs in (plans or {}).items()
    }
    everything = list(given.items()) or plan_contest.list_entries(task)
    entered = [(name, verdict) for name, verdict in everything if verdict.fits][:MOST_BARS]
    if not entered:
        raise ValueError(f"no plan that fits the task {task}: plan_contest.enter takes one")
    figure, axes = begin(f"Predicted: a step of the task {task}", 2.9 + 0.75 * len(entered))
    says = []
    fastest = entered[0][1].seconds / entered[0][1].slower
    limit = CUT_AT * fastest
    for row, (name, verdict) in enumerate(entered):
        left = stack_bars(axes, row, group_parts(verdict.parts), 1, limit, LOOKS)
        if left > limit:
            margin(axes, row, "▶", x=0.99, ha="right", zorder=4, bbox=WHITE)
        margin(axes, row, f"{left:.2f} s", x=1.015, **BOLD)
        marker_line(axes, row, fastest)
        says.append(f"{name}, {verdict.given}: {left:.2f} s, limited by {verdict.limit}")
    rows(axes, [_wrap_label(name, one.given) for name, one in entered])
    axes.set(xlim=(0, limit), xlabel="seconds of a step")
    legend(figure, handles(LOOKS))
    notes = (
        "Predicted by the planner, not measured. Black line: the fastest plan that it finds.",
        "The rest: launches from the host, experts, the optimizer. ▶: the bar goes on.",
    )
    if left_out := len(everything) - len(entered):
        notes += (f"Not drawn, as they do not fit, are impossible, or too many: {left_out}.",)
    return finish(figure, (), f"{'; '.join(says)}.", notes)


def _wrap_label(name: str, given: str) -> str:
    """Wrap a plan's text without parting a knob from its value."""
    together = given.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return textwrap.fill(f"{name}: {together}", 26)
