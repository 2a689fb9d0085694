"""Controls on top, below them a picture that follows: `follow(draw, n=steps(...))`.

Without ipywidgets a reader sees the first choice. Controls have labels and work from the keyboard.
"""

import html
from collections.abc import Callable
from types import SimpleNamespace

from matplotlib.figure import Figure

from bootcamp.drawing import style
from bootcamp.launcher import progress


def steps(label: str, value, options: list):
    """Make a slider over a list, such as of bucket sizes; an option may be (text, value)."""
    return control("SelectionSlider", label, value, options=options, continuous_update=False)


def choice(label: str, options: list, value):
    """Make a drop-down list; an option may be (text, value)."""
    return control("Dropdown", label, value, options=options)


def control(kind: str, label: str, value, **look):
    """Make any of ipywidgets' controls; without ipywidgets an object with this value."""
    if not (library := progress.load_widgets()):
        return SimpleNamespace(value=value, layout=SimpleNamespace())
    style = {"description_width": "initial"}  # as wide as its words
    return getattr(library, kind)(value=value, description=label, style=style, **look)


def to_html(drawing) -> str:
    """Return a figure as an image with its text alternative, HTML as it is, a table as HTML."""
    if isinstance(drawing, Figure):
        return style.image(drawing)
    return drawing if isinstance(drawing, str) else drawing._repr_html_()


def follow(draw: Callable, **controls) -> dict:
    """Show the controls and what draw(**their values) gives; draw again whenever one is moved.

    draw: returns a Figure, HTML, or anything with _repr_html_; a ValueError is shown as a sentence.
    Returns the controls, if any, by name.
    """
    from IPython.display import HTML, display

    def drawing() -> HTML:
        try:
            drawn = to_html(draw(**{name: control.value for name, control in controls.items()}))
        except ValueError as why:
            drawn = f"<p><b>Not possible:</b> {html.escape(str(why).rstrip('.'))}.</p>"
        return HTML(drawn)

    if not (library := progress.load_widgets()):
        first = ", ".join(f"{name} {control.value!r}" for name, control in controls.items())
        print(f"No widgets here, so this is one choice: {first}.")
        display(drawing())
        return {}
    row = library.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
    progress.show(row, f"Controls: {', '.join(controls)}.")
    picture = display(drawing(), display_id=True)

    def update(_) -> None:
        with style.DRAWING:  # in threads: one after another, the last with the latest values
            picture.update(drawing())

    for control in controls.values():
        control.observe(update, "value")
    return controls
