"""Controls where there are no widgets: a line of code moves one, `moved["ranks"].value = 8`.

They have what of ipywidgets' controls the course uses: description, value, options, layout,
observe.
"""

from types import SimpleNamespace

from traitlets import Any, HasTraits, TraitError, observe, validate

SHOWN = 8  # options of a control that are named


class Plain(HasTraits):
    """One control. options: what can be chosen, or None for any text.

    several: value is a tuple of options. Raises TraitError for a value that can't be chosen.
    """

    value, options = Any(), Any()

    def __init__(self, label, value, options=None, several=False):
        self.description, self.several = label, several
        self.layout = SimpleNamespace()
        super().__init__(value=value, options=options)

    def choices(self) -> list:
        return [one[1] if isinstance(one, tuple) else one for one in self.options or ()]

    @validate("value")
    def _possible(self, proposal):
        chosen = proposal["value"]
        asked = chosen if self.several else (chosen,)
        if self.options is not None and not set(asked) <= set(self.choices()):
            raise TraitError(f"{chosen!r} can't be chosen: {self.says()}")
        return chosen

    @observe("options")
    def _first_option(self, _) -> None:
        if self.several:
            self.value = ()
        elif self.options is not None and self.value not in self.choices():
            self.value = self.choices()[0]

    def says(self) -> str:
        """Its value, and what else can be chosen."""
        if self.options is None:
            return f"{self.value!r}, any text"
        found = self.choices()
        if self.several:
            return f"{len(self.value)} chosen of {len(found)}, a tuple of its .choices()"
        named = ", ".join(repr(one) for one in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more in its .choices()" if len(found) > SHOWN else ""
        return f"{self.value!r}, of {named}{more}"


def explained(controls: dict[str, Plain]) -> str:
    """How a reader moves these, and what they are at, a line for each."""
    name, first = next(iter(controls.items()))
    other = next((one for one in first.choices() if one != first.value), first.value)
    lines = [
        "No widgets here. Name what this call returns, moved = ..., and a cell below it moves",
        f"a control and draws again: moved[{name!r}].value = {other!r}. The controls are at:",
        *(f"  {name}: {control.says()}" for name, control in controls.items()),
    ]
    return "\n".join(lines)
