"""The viewer of script diffs: `diff_viewer.show("ddp")`: the changed lines, and why.

`diff_viewer.draw("ddp", "horovod")` is the same without widgets. The diff is derived from the files
when it is shown (scripts/diff.py).
"""

from bootcamp.scripts import diff, strategies
from bootcamp.widgets import controls

PARENT = "its parent"


def draw(script: str, against: str = PARENT) -> str:
    """Show what a script adds to another and takes from it, as HTML: each line, and why.

    Raises ValueError for a script and itself, and for the baseline and its parent.
    """
    if script == against:
        raise ValueError(f"{script} does not differ from itself: choose another to compare with")
    return diff.script_diff(script, None if against == PARENT else against)._repr_html_()


def show(script: str = "gpu", against: str = PARENT) -> dict:
    """Show the viewer, beginning with these two; returns the controls by name."""
    names = list(strategies.SCRIPTS)
    return controls.follow(
        draw,
        script=controls.choice("script", names, script),
        against=controls.choice("compared with", [PARENT, *names], against),
    )
