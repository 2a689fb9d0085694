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


def show(kind: str, data: dict, still: Table) -> Explorer:
    """Display an explorer, and return it. still: for pages that show no widgets."""
    explorer = Explorer(kind=kind, data=data, choice=explorers.first_choice(data))
    bundle, _ = explorer._repr_mimebundle_()
    display({**bundle, "text/html": still._repr_html_(), "text/plain": str(still)}, raw=True)
    return explorer
