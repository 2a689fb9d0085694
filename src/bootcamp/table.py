"""Table: rows that read well in a notebook and in a terminal; pandas takes seconds to import."""

import html
import re
from collections.abc import Callable, Iterable

from bootcamp.units import number

STYLE = "text-align:left;white-space:nowrap"  # of a caption, which a narrow table would wrap


def with_code(text: str) -> str:
    """Return text as HTML, with the words in backticks set as code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))


class Table:
    """Dictionaries as rows, the first one's keys as columns; a caption says what and from where."""

    folded = False  # whether only the caption is shown; a page unfolds the rest

    def __init__(self, rows: list[dict], caption: str = ""):
        self.rows, self.caption = rows, caption
        self.columns = list(rows[0]) if rows else []

    @classmethod
    def of(cls, things: Iterable, columns: dict[str, str | Callable], caption: str = "") -> "Table":
        """Make a row of each thing.

        things: a list, or {name: thing}, whose names become the first column, "run".
        columns: {heading: a function of a thing, or the name of its key or attribute}.
        """
        pairs = things.items() if isinstance(things, dict) else ((None, each) for each in things)
        rows = []
        for name, thing in pairs:
            row = {"run": name} if isinstance(things, dict) else {}
            rows.append(row | {head: _value(thing, column) for head, column in columns.items()})
        return cls(rows, caption)

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list:
        return [row[name] for row in self.rows]

    def _cells(self) -> list[list[str]]:
        whole = {name: self._is_whole(name) for name in self.columns}
        return [[number(row.get(name), w) for name, w in whole.items()] for row in self.rows]

    def __str__(self) -> str:
        padded = []
        for name, *cells in zip(self.columns, *self._cells(), strict=True):
            width = max(map(len, (name, *cells)))
            side = ">" if self._is_numeric(name) else "<"
            padded.append([f"{c:{side}{width}}" for c in (name, "-" * width, *cells)])
        lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
        return "\n".join(filter(None, [self.caption, *lines[: 0 if self.folded else None]]))

    __repr__ = __str__

    def _is_numeric(self, name: str) -> bool:
        values = [row.get(name) for row in self.rows if row.get(name) is not None]
        return bool(values) and all(isinstance(v, int | float) for v in values)

    def _is_whole(self, name: str) -> bool:
        return not any(isinstance(row.get(name), float) and row[name] % 1 for row in self.rows)

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(self.caption)}</p>"
        sides = ["right" if self._is_numeric(name) else "left" for name in self.columns]

        def row(tag: str, cells: list[str]) -> str:
            marked, end = "", tag.split()[0]
            for cell, side in zip(cells, sides, strict=True):
                marked += f'<{tag} style="text-align:{side}">{html.escape(cell)}</{end}>'
            return f"<tr>{marked}</tr>"

        head = row('th scope="col"', self.columns)
        body = "".join(row("td", cells) for cells in self._cells())
        text = html.escape(self.caption)
        caption = text and not self.folded and f'<caption style="{STYLE}">{text}</caption>'
        table = f"<table>{caption or ''}<thead>{head}</thead><tbody>{body}</tbody></table>"
        return f"<details><summary>{text}</summary>{table}</details>" if self.folded else table


def _value(thing, column: str | Callable):
    if callable(column):
        return column(thing)
    return thing.get(column) if isinstance(thing, dict) else getattr(thing, column)
