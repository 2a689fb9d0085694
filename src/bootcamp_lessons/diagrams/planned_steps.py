"""Where the seconds of planned steps go, as bootcamp.plan predicts them."""

import textwrap

from matplotlib.figure import Figure

from bootcamp.costs.planner import WORDS
from bootcamp.drawing.charts import BOLD, WHITE, handles, margin, marker_line, rows, stacked
from bootcamp.drawing.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp_lessons import planned

LOOKS = {
    "compute": (BLUE, ""),
    planned.AGAIN: (GREY, "\\\\"),
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
MOST = 10  # bars
SHOWN = 3.0  # times the fastest: where bars are cut


def grouped(parts: dict[str, float]) -> dict[str, float]:
    """{name in LOOKS: seconds}."""
    found = dict.fromkeys(LOOKS, 0.0)
    for name, seconds in parts.items():
        found[name if name in LOOKS else GROUPS.get(name, "the rest")] += seconds
    return found


@styled
def steps(task: str, plans: dict[str, dict] | None = None) -> Figure:
    """Draw a bar for each of plans {name: knobs} that fits a task; by default those on its board.

    Raises ValueError where no plan fits.
    """
    given = {who: planned.judge(knobs, planned.TASKS[task]) for who, knobs in (plans or {}).items()}
    everything = list(given.items()) or planned.entered(task)
    entered = [(who, verdict) for who, verdict in everything if verdict.fits][:MOST]
    if not entered:
        raise ValueError(f"no plan that fits the task {task}: planned.enter takes one")
    figure, axes = begin(f"Predicted: a step of the task {task}", 2.9 + 0.75 * len(entered))
    says = []
    fastest = entered[0][1].seconds / entered[0][1].slower
    limit = SHOWN * fastest
    for row, (who, verdict) in enumerate(entered):
        left = stacked(axes, row, grouped(verdict.parts), 1, limit, LOOKS)
        if left > limit:
            margin(axes, row, "▶", x=0.99, ha="right", zorder=4, bbox=WHITE)
        margin(axes, row, f"{left:.2f} s", x=1.015, **BOLD)
        marker_line(axes, row, fastest)
        says.append(f"{who}, {verdict.given}: {left:.2f} s, limited by {verdict.limit}")
    rows(axes, [_label(who, one.given) for who, one in entered])
    axes.set(xlim=(0, limit), xlabel="seconds of a step")
    legend(figure, handles(LOOKS))
    notes = (
        "Predicted by the planner, not measured. Black line: the fastest plan that it finds.",
        "The rest: launches from the host, experts, the optimizer. ▶: the bar goes on.",
    )
    if left_out := len(everything) - len(entered):
        notes += (f"Not drawn, as they do not fit, are impossible, or too many: {left_out}.",)
    return finish(figure, (), f"{'; '.join(says)}.", notes)


def _label(who: str, given: str) -> str:
    """On lines that keep a knob with its value."""
    together = given.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return textwrap.fill(f"{who}: {together}", 26)
