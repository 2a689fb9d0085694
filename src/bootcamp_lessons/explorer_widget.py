"""An explorer in a notebook: explorers.js as an anywidget. Importing this needs anywidget."""

import anywidget
from IPython.display import display
from traitlets import Dict, Unicode

from bootcamp.table import Table
from bootcamp_lessons import explorers


class Explorer(anywidget.AnyWidget):
    """The picture and its controls. choice: the controls' values by name, here and on the page."""

    _esm = explorers.SCRIPT.read_text()
    kind, data, choice = (trait.tag(sync=True) for trait in (Unicode(), Dict(), Dict()))


class Control:
    """One control of an explorer, moved by its value as a slider of ipywidgets is."""

    def __init__(self, explorer: Explorer, described: dict):
        self.explorer, self.name = explorer, described["name"]
        self.options = [tuple(pair) for pair in described["options"]]

    @property
    def value(self):
        return self.explorer.choice[self.name]

    @value.setter
    def value(self, value) -> None:
        known = [option for _, option in self.options]
        if value not in known:
            raise ValueError(f"{value!r} can't be chosen: {', '.join(map(str, known))}")
        self.explorer.choice = {**self.explorer.choice, self.name: value}


def show(kind: str, data: dict, still: Table) -> dict[str, Control]:
    """Display an explorer; its controls by name. still: for pages that show no widgets."""
    explorer = Explorer(kind=kind, data=data, choice=explorers.first_choice(data))
    bundle, _ = explorer._repr_mimebundle_()
    display({**bundle, "text/html": still._repr_html_(), "text/plain": str(still)}, raw=True)
    return {one["name"]: Control(explorer, one) for one in data["controls"]}
