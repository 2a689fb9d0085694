"""What all widgets have in common: controls on top, below them a picture that follows.

A widget is a pure function `draw(**choices)` with thin controls: `follow(draw, n=steps(...))`. The
picture is an ordinary output of the cell, so a reader without widgets sees the first choice, and a
test calls `draw` without a browser. Controls have labels and work from the keyboard: Tab goes from
one to the next, the arrow keys move a slider. Without ipywidgets a line of code moves them
(plain.py).
"""

import html
from collections.abc import Callable

from matplotlib.figure import Figure

from bootcamp.drawing import style
from bootcamp.launcher import progress
from bootcamp.widgets.plain import Plain, explained

LABEL = {"style": {"description_width": "initial"}}  # as wide as its words


def steps(label: str, value, options: list):
    """A slider over a list, such as of bucket sizes; an option may be (text, value)."""
    if not (library := progress.widgets()):
        return Plain(label, value, options)
    look = {"description": label, "continuous_update": False, **LABEL}
    return library.SelectionSlider(options=options, value=value, **look)


def choice(label: str, options: list, value=None):
    """A drop-down list; an option may be (text, value)."""
    first = options[0][1] if isinstance(options[0], tuple) else options[0]
    value = first if value is None else value
    if not (library := progress.widgets()):
        return Plain(label, value, options)
    return library.Dropdown(options=options, value=value, description=label, **LABEL)


def several(label: str, options: list):
    """A list of which several can be chosen: Ctrl and a click, or Shift and the arrow keys."""
    if not (library := progress.widgets()):
        return Plain(label, (), options, several=True)
    look = {"layout": {"width": "98%"}, "description": label, **LABEL}
    return library.SelectMultiple(options=options, rows=8, **look)


def words(label: str, placeholder: str):
    """A field for a text."""
    if not (library := progress.widgets()):
        return Plain(label, "")
    look = {"description": label, "continuous_update": False, "layout": {"width": "40em"}}
    return library.Text(placeholder=placeholder, **look)


def shown(drawing) -> str:
    """A drawing as HTML: a figure as an image with its text alternative, HTML as it is, a table."""
    if isinstance(drawing, Figure):
        return style.image(drawing)
    return drawing if isinstance(drawing, str) else drawing._repr_html_()


def drawn(draw: Callable, choices: dict) -> str:
    """draw(**choices) as HTML; a ValueError as a sentence."""
    try:
        return shown(draw(**choices))
    except ValueError as why:
        return f"<p><b>Not possible:</b> {html.escape(str(why).rstrip('.'))}.</p>"


def follow(draw: Callable, react: Callable | None = None, **controls) -> dict:
    """Show the controls and what draw(**their values) gives; draw again whenever one is moved.

    draw: returns a Figure, HTML, or anything with _repr_html_; a ValueError is shown as a sentence.
    react: called with the name of the moved control and all controls before the drawing, for
    controls that move each other. Returns the controls by name.
    """
    from IPython.display import HTML, display

    names = {control: name for name, control in controls.items()}

    def drawing() -> HTML:
        return HTML(drawn(draw, {name: control.value for name, control in controls.items()}))

    if library := progress.widgets():
        row = library.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
        progress.show(row, f"Controls: {', '.join(controls)}.")
    else:
        print(explained(controls))
    picture = display(drawing(), display_id=True)
    moving = False  # a control that `react` sets calls this again: draw once

    def moved(change) -> None:
        nonlocal moving
        with style.DRAWING:  # in threads: one after another, the last with the latest values
            if moving:
                return
            moving = True
            try:
                if react:
                    react(names[change["owner"]], controls)
            finally:
                moving = False
            picture.update(drawing())

    for control in controls.values():
        control.observe(moved, "value")
    return controls
