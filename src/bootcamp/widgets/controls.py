"""Controls on top, below them a picture that follows: `follow(draw, n=steps(...))`.

Without ipywidgets a reader sees the picture of the first choice. Controls have labels and work from
the keyboard.
"""

import html
from collections.abc import Callable
from types import SimpleNamespace

from matplotlib.figure import Figure

from bootcamp.drawing import style
from bootcamp.launcher import progress


def steps(label: str, value, options: list):
    """A slider over a list, such as of bucket sizes; an option may be (text, value)."""
    return _control("SelectionSlider", label, value, options=options, continuous_update=False)


def choice(label: str, options: list, value=None):
    """A drop-down list; an option may be (text, value)."""
    if value is None:
        value = options[0][1] if isinstance(options[0], tuple) else options[0]
    return _control("Dropdown", label, value, options=options)


def several(label: str, options: list):
    """A list of which several can be chosen: Ctrl and a click, or Shift and the arrow keys."""
    return _control("SelectMultiple", label, (), options=options, rows=8, layout={"width": "98%"})


def words(label: str, placeholder: str, value: str = ""):
    """A field for a text."""
    look = {"continuous_update": False, "layout": {"width": "40em"}}
    return _control("Text", label, value, placeholder=placeholder, **look)


def _control(kind: str, label: str, value, **look):
    if not (library := progress.widgets()):
        return SimpleNamespace(value=value, layout=SimpleNamespace())
    style = {"description_width": "initial"}  # as wide as its words
    return getattr(library, kind)(value=value, description=label, style=style, **look)


def shown(drawing) -> str:
    """A drawing as HTML: a figure as an image with its text alternative, HTML as it is, a table."""
    if isinstance(drawing, Figure):
        return style.image(drawing)
    return drawing if isinstance(drawing, str) else drawing._repr_html_()


def follow(draw: Callable, react: Callable | None = None, **controls) -> dict:
    """Show the controls and what draw(**their values) gives; draw again whenever one is moved.

    draw: returns a Figure, HTML, or anything with _repr_html_; a ValueError is shown as a sentence.
    react: called with the name of the moved control and all controls before the drawing, for
    controls that move each other. Returns the controls by name; none without ipywidgets.
    """
    from IPython.display import HTML, display

    def drawing() -> HTML:
        try:
            drawn = shown(draw(**{name: control.value for name, control in controls.items()}))
        except ValueError as why:
            drawn = f"<p><b>Not possible:</b> {html.escape(str(why).rstrip('.'))}.</p>"
        return HTML(drawn)

    if not (library := progress.widgets()):
        first = ", ".join(f"{name} {control.value!r}" for name, control in controls.items())
        print(f"No widgets here, so this is one choice: {first}.")
        display(drawing())
        return {}
    row = library.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
    progress.show(row, f"Controls: {', '.join(controls)}.")
    picture = display(drawing(), display_id=True)
    names = {control: name for name, control in controls.items()}
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
