"""A small table that reads well in a notebook and in a terminal.

Not pandas: its import takes longer than most cells, and a lesson only shows rows, never joins them.
"""

import html
import re
from collections.abc import Callable, Iterable

from bootcamp.units import number

CAPTION_STYLE = "text-align:left;white-space:nowrap"  # a narrow table would wrap it word by word


def with_code(text: str) -> str:
    """Text as HTML; what stands in backticks is set as code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))


class Table:
    """Rows of the same columns: a list of dictionaries, shown in the order of the first one's keys.

    caption: what the table shows and where its numbers come from.
    """

    def __init__(self, rows: list[dict], caption: str = ""):
        self.rows, self.caption = rows, caption
        self.columns = list(rows[0]) if rows else []

    @classmethod
    def of(cls, things: Iterable, columns: dict[str, str | Callable], caption: str = "") -> "Table":
        """Make a row of each thing; a column is a function of it, or one of its keys or attributes.

        things: a list, or {name: thing}, whose names become the first column, "run".
        """
        named = isinstance(things, dict)
        rows = []
        for name, thing in things.items() if named else ((None, thing) for thing in things):
            row = {"run": name} if named else {}
            rows.append(row | {head: _value(thing, column) for head, column in columns.items()})
        return cls(rows, caption)

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list:
        """The values of one column, from top to bottom."""
        return [row[name] for row in self.rows]

    def _cells(self) -> list[list[str]]:
        return [[number(row.get(name)) for name in self.columns] for row in self.rows]

    def __str__(self) -> str:
        padded = []
        for name, *cells in zip(self.columns, *self._cells(), strict=True):
            width = max(map(len, (name, *cells)))
            side = ">" if self._is_numeric(name) else "<"
            padded.append([f"{c:{side}{width}}" for c in (name, "-" * width, *cells)])
        lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
        return "\n".join([self.caption, *lines] if self.caption else lines)

    __repr__ = __str__

    def _is_numeric(self, name: str) -> bool:
        values = [row.get(name) for row in self.rows if row.get(name) is not None]
        return bool(values) and all(isinstance(v, int | float) for v in values)

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(self.caption)}</p>"
        sides = ["right" if self._is_numeric(name) else "left" for name in self.columns]

        def row(tag: str, cells: list[str]) -> str:
            end = tag.split()[0]
            marked = [
                f'<{tag} style="text-align:{side}">{html.escape(cell)}</{end}>'
                for cell, side in zip(cells, sides, strict=True)
            ]
            return f"<tr>{''.join(marked)}</tr>"

        head = row('th scope="col"', self.columns)
        body = "".join(row("td", cells) for cells in self._cells())
        caption = f'<caption style="{CAPTION_STYLE}">{html.escape(self.caption)}</caption>'
        caption = caption if self.caption else ""
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _value(thing, column: str | Callable):
    if callable(column):
        return column(thing)
    return thing.get(column) if isinstance(thing, dict) else getattr(thing, column)
