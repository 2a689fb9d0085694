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
        lines = [self.columns, *self._cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        numeric = [self._is_numeric(name) for name in self.columns]
        text = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
            for line in lines
        ]
        text.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.caption, *text] if self.caption else text)

    __repr__ = __str__

    def _is_numeric(self, name: str) -> bool:
        values = [row.get(name) for row in self.rows if row.get(name) is not None]
        return bool(values) and all(isinstance(v, int | float) for v in values)

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(self.caption)}</p>"
        align = {n: "right" if self._is_numeric(n) else "left" for n in self.columns}
        head = "".join(
            f'<th scope="col" style="text-align:{align[n]}">{html.escape(n)}</th>'
            for n in self.columns
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{align[name]}">{html.escape(cell)}</td>'
                for name, cell in zip(self.columns, cells, strict=True)
            )
            + "</tr>"
            for cells in self._cells()
        )
        caption = (
            f'<caption style="{CAPTION_STYLE}">{html.escape(self.caption)}</caption>'
            if self.caption
            else ""
        )
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _value(thing, column: str | Callable):
    if callable(column):
        return column(thing)
    return thing.get(column) if isinstance(thing, dict) else getattr(thing, column)
