"""An explorer as a widget in a notebook. Importing this needs anywidget."""

import anywidget
from IPython.display import display
from traitlets import Dict, Unicode

from bootcamp.table import Table
from bootcamp_lessons import explorers


class Explorer(anywidget.AnyWidget):
    """Picture and controls that explorers.js draws. choice: the controls' values by name."""

    _esm = explorers.SCRIPT.read_text()
    kind, data, choice = (trait.tag(sync=True) for trait in (Unicode(), Dict(), Dict()))


def show(kind: str, data: dict, fallback: Table) -> Explorer:
    """Display an explorer and return it; `fallback` is shown where there are no widgets."""
    explorer = Explorer(kind=kind, data=data, choice=explorers.initial_values(data))
    bundle, _ = explorer._repr_mimebundle_()
    display({**bundle, "text/html": fallback._repr_html_(), "text/plain": str(fallback)}, raw=True)
    return explorer
