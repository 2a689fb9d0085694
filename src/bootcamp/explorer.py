"""The explorer of pipeline schedules, for notebook 06b: `explorer.explore({"my run": spans})`.

`draw` makes the picture from the choices; the controls only choose. The picture is an ordinary
output of the cell, so a reader without widgets sees the first choice.
"""

from bootcamp import figure, schedules
from bootcamp.pictures import pipeline

NO_RUN = "none"


def draw(schedule: str, ranks: int, micro_batches: int, measured: list | None = None) -> str:
    """The picture for these choices as HTML, or a sentence on why there is none."""
    try:
        return figure.image(pipeline.explored(schedule, ranks, micro_batches, measured))
    except schedules.Impossible as why:
        return f"<p><b>Not possible:</b> {why}.</p>"


def choices_of(spans: list) -> dict:
    """The schedule, the ranks and the micro-batches of a measured run, from what it did.

    Raises ValueError if it followed no schedule's plan.
    """
    if (schedule := schedules.which(spans)) is None:
        raise ValueError("these spans follow no schedule's plan: the run did something else")
    micro_batches = 1 + max(span.action.micro_batch for span in spans)
    ranks = len(schedules.by_rank(spans))
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}


def explore(measured: dict[str, list] | None = None, run: str = NO_RUN, **first) -> dict:
    """Show controls and the picture that follows them; returns the controls by name.

    measured: {name: spans} of runs that can be laid under the theory; run: the one to begin with.
    first: or the choices to begin with, `schedule`, `ranks`, `micro_batches`.
    """
    import ipywidgets
    from IPython.display import HTML, display

    measured = measured or {}
    begin = {"schedule": "1f1b", "ranks": 4, "micro_batches": 8, **first}
    if run != NO_RUN:
        begin = choices_of(measured[run])
    number = {"continuous_update": False, "style": {"description_width": "initial"}}
    controls = {
        "schedule": ipywidgets.Dropdown(
            options=schedules.SCHEDULES, value=begin["schedule"], description="schedule"
        ),
        "ranks": ipywidgets.IntSlider(begin["ranks"], 1, 8, description="ranks", **number),
        "micro_batches": ipywidgets.IntSlider(
            begin["micro_batches"], 1, 32, description="micro-batches", **number
        ),
        "run": ipywidgets.Dropdown(options=[NO_RUN, *measured], value=run, description="measured"),
    }
    display(ipywidgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"}))
    picture = display(HTML(draw(**begin, measured=measured.get(run))), display_id=True)

    def chosen() -> dict:
        return {name: controls[name].value for name in ("schedule", "ranks", "micro_batches")}

    following = False  # setting a control calls `follow` again: draw once

    def follow(change) -> None:
        nonlocal following
        if following:
            return
        following = True
        try:
            run = measured.get(controls["run"].value)
            if run and change["owner"] is controls["run"]:  # a run brings its own choices
                for name, value in choices_of(run).items():
                    controls[name].value = value
            elif run and chosen() != choices_of(run):  # these choices are not that run's
                run, controls["run"].value = None, NO_RUN
        finally:
            following = False
        picture.update(HTML(draw(**chosen(), measured=run)))

    for control in controls.values():
        control.observe(follow, "value")
    return controls
