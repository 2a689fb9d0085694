"""Pieces of the course's code in a cell: `excerpts.piece(path, "def part(", "class Held")`."""

import inspect
import textwrap
from pathlib import Path

from IPython.display import Markdown


def code(text: str) -> Markdown:
    """Python code as a block of its own, moved to the left margin."""
    return Markdown(f"```python\n{textwrap.dedent(text).strip()}\n```")


def piece(path: Path, begin: str, end: str) -> Markdown:
    """A file from the line in which `begin` stands up to the text `end`."""
    before, rest = path.read_text().split(begin, 1)
    return code(before.rpartition("\n")[2] + begin + rest[: rest.index(end)])


def source(*functions) -> Markdown:
    """Functions as they stand in the course."""
    return code("\n\n".join(map(inspect.getsource, functions)))
