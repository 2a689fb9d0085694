"""What a strategy changes: a script's diff to its parent, derived from the files when shown."""

import difflib
import html
import io
import tokenize
from pathlib import Path

from bootcamp.scripts import family, reasons
from bootcamp.table import with_code


def code_lines(path: Path) -> list[str]:
    """The lines of a script that are code: without comments, docstrings and blank lines.

    Of a script that Python cannot read, all lines but the blank ones and the comments.
    """
    text = Path(path).read_text()
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    kept = {}
    previous = tokenize.NEWLINE
    for token in tokens:
        starts_statement = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING):
            continue
        if not (token.type == tokenize.STRING and starts_statement) and token.string.strip():
            for row in range(token.start[0], token.end[0] + 1):
                kept[row] = True
        previous = token.type
    lines = text.splitlines()
    return [_without_comment(lines[row - 1]) for row in sorted(kept)]


def _without_comment(line: str) -> str:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return line.rstrip()
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    indent = line[: len(line) - len(line.lstrip())]
    return indent + line.strip()[: comments[0].start[1]].rstrip() if comments else line.rstrip()


def changed_lines(child: Path, parent: Path) -> tuple[int, int]:
    """Code lines that a script adds to its parent and takes from it: (added, removed).

    A line that is changed counts in both.
    """
    matcher = difflib.SequenceMatcher(None, code_lines(parent), code_lines(child), autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    return sum(c[4] - c[3] for c in changes), sum(c[2] - c[1] for c in changes)


class ScriptDiff:
    """The changed lines of a script between the unchanged ones around them.

    Shows as coloured lines in a notebook, beside them why they are there; with + and - everywhere,
    so that it needs no colour.
    """

    def __init__(self, child: Path, parent: Path, context: int = 2):
        self.child, self.parent = Path(child), Path(parent)
        self.added, self.removed = changed_lines(child, parent)
        before, after = (path.read_text().splitlines() for path in (self.parent, self.child))
        self.lines = list(
            difflib.unified_diff(
                before, after, self.parent.name, self.child.name, lineterm="", n=context
            )
        )

    @property
    def title(self) -> str:
        """What the diff is of, and how many code lines it comes to."""
        return (
            f"{self.child.name}: {self.added} code lines added to {self.parent.name}, "
            f"{self.removed} taken out"
        )

    def __str__(self) -> str:
        return "\n".join([self.title, *self.lines])

    __repr__ = __str__

    def whys(self) -> list[str]:
        """A sentence for each of the diff's `lines`, "" where there is none.

        Why an added line is there, and what a line did that is gone (reasons.py).
        """
        after = {line.strip() for line in code_lines(self.child)}
        return [self._why(line, after) for line in self.lines]

    def _why(self, line: str, after: set[str]) -> str:
        sign, code = line[:1], _without_comment(line[1:]).strip()
        if sign == "+":
            return reasons.why(self.child, code)
        if sign == "-" and code not in after:  # else it only moved
            was = reasons.why(self.parent, code)
            return f"Was: {was}" if was else ""
        return ""

    def _repr_html_(self) -> str:
        rows = list(zip(self.lines, self.whys(), strict=True))[2:]
        explained = any(why and line.startswith("+") for line, why in rows)
        cells = "".join(
            f'<tr style="background:transparent">{_code_cell(line)}'
            f"{_why_cell(why) if explained else ''}</tr>"
            for line, why in rows
        )
        heads = (("line", "62%"), ("why", "38%")) if explained else (("line", "100%"),)
        head = "".join(
            f'<th scope="col" style="width:{width};{CELL}">{name}</th>' for name, width in heads
        )
        title = html.escape(self.title)
        return (
            f"<p><b>{title}</b></p>"
            f'<div role="region" aria-label="{title}">'
            '<table style="table-layout:fixed;width:100%;border-collapse:collapse">'
            f"<thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div>"
        )


CELL = "text-align:left;vertical-align:top;padding:1px 8px;border:0"
# light backgrounds with dark text: readable in a light and in a dark theme
SIGN_STYLES = {"+": "background:#d7ecff;color:#0b3a66", "-": "background:#ffe3c7;color:#6b3200"}


def _code_cell(line: str) -> str:
    """A line of the diff; a long one goes on below, further in than it began."""
    if line.startswith("@@"):
        return f'<td style="{CELL};opacity:0.6">⋯</td>'
    inset = len(line) - len(line[1:].lstrip()) + 4
    style = (
        f"{CELL};{SIGN_STYLES.get(line[:1], '')};font-family:monospace;font-size:90%;"
        f"white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.4;"
        f"padding-left:calc(8px + {inset}ch);text-indent:-{inset}ch"
    )
    return f'<td style="{style}">{html.escape(line) or " "}</td>'


def _why_cell(why: str) -> str:
    return f'<td style="{CELL};line-height:1.3">{with_code(why)}</td>'


def script_diff(script: str, parent: str | Path | None = None) -> ScriptDiff:
    """The diff of a script of the family to its parent, or to another script or file."""
    path = family.find(script)
    if parent is None:
        parent = family.SCRIPTS[str(script)].parent
    if parent is None:
        raise ValueError(f"{script} is the baseline: it has no parent to compare with")
    return ScriptDiff(path, family.find(parent))
