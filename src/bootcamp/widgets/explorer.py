"""The explorer of pipeline schedules, for notebook 06b: `explorer.explore({"my run": spans})`."""

from bootcamp.drawing import style
from bootcamp.drawing.diagrams import pipeline
from bootcamp.theory import pipeline_schedules
from bootcamp.widgets import controls as widget

NO_RUN = "none"
CHOICES = ("schedule", "ranks", "micro_batches")


def draw(schedule: str, ranks: int, micro_batches: int, measured: list | None = None) -> str:
    """The picture for these choices as HTML, or a sentence on why there is none."""
    try:
        return style.image(pipeline.explored(schedule, ranks, micro_batches, measured))
    except pipeline_schedules.Impossible as why:
        return f"<p><b>Not possible:</b> {why}.</p>"


def choices_of(spans: list) -> dict:
    """The schedule, the ranks and the micro-batches of a measured run, from what it did.

    Raises ValueError if it followed no schedule's plan.
    """
    if (schedule := pipeline_schedules.which(spans)) is None:
        raise ValueError("these spans follow no schedule's plan: the run did something else")
    micro_batches = 1 + max(span.action.micro_batch for span in spans)
    ranks = len(pipeline_schedules.by_rank(spans))
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}


def explore(measured: dict[str, list] | None = None, run: str = NO_RUN, **first) -> dict:
    """Show controls and the picture that follows them; returns the controls by name.

    measured: {name: spans} of runs that can be laid under the theory; run: the one to begin with.
    first: or the choices to begin with, `schedule`, `ranks`, `micro_batches`.
    """
    measured = measured or {}
    begin = {"schedule": "1f1b", "ranks": 4, "micro_batches": 8, **first}
    if run != NO_RUN:
        begin = choices_of(measured[run])

    def react(moved: str, controls: dict) -> None:
        spans = measured.get(controls["run"].value)
        if spans and moved == "run":  # a run brings its own choices
            for name, value in choices_of(spans).items():
                controls[name].value = value
        elif spans and {name: controls[name].value for name in CHOICES} != choices_of(spans):
            controls["run"].value = NO_RUN  # these choices are not that run's

    return widget.follow(
        lambda run, **chosen: draw(**chosen, measured=measured.get(run)),
        react,
        schedule=widget.choice("schedule", list(pipeline_schedules.SCHEDULES), begin["schedule"]),
        ranks=widget.slider("ranks", begin["ranks"], 1, 8),
        micro_batches=widget.slider("micro-batches", begin["micro_batches"], 1, 32),
        run=widget.choice("measured", [NO_RUN, *measured], run),
    )
