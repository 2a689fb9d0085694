"""What a strategy changes: a script's diff to its parent, derived from the files when shown."""

import ast
import contextlib
import difflib
import html
import io
import re
import tokenize
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path

from bootcamp.scripts import family
from bootcamp.table import with_code

HEADING = re.compile(r"# \d\. ")


def explained_lines(path: Path) -> list[tuple[str, str]]:
    """Pair each line of a script, its own comment cut off, with the comment above it.

    The headings ("# 2. Model") are lines.
    """
    text = Path(path).read_text()
    comments = _comment_columns(text)
    pairs, above = [], []
    for row, line in enumerate(text.splitlines(), 1):
        code = line[: comments.get(row)].rstrip()
        if HEADING.match(line):
            pairs.append((line, ""))
        elif row in comments and not code:
            above.append(line.strip(" #"))
        else:
            pairs.append((code, " ".join(above)))
            above = []
    return pairs


def is_reason(line: str) -> bool:
    """Whether a line is a comment, and no heading."""
    return line.strip().startswith("#") and not HEADING.match(line)


def _comment_columns(text: str) -> dict[int, int]:
    """Map each row with a comment to its column; of broken Python, rows of comments only."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        rows = enumerate(text.splitlines(), 1)
        return {row: line.index("#") for row, line in rows if line.strip().startswith("#")}
    return {row: column for kind, _, (row, column), *_ in tokens if kind == tokenize.COMMENT}


def reasons(path: Path) -> Mapping[str, str]:
    """Map a script's lines, with their indentation, to the reasons written above them.

    A line that a script shares with an ancestor has the nearest ancestor's reason.
    """
    scripts = [Path(path), *family.ancestors(path)]
    own = [{line: why for line, why in explained_lines(each) if line and why} for each in scripts]
    return ChainMap(*own)


def code_lines(path: Path) -> list[str]:
    """List the lines of a script that are code: no comments, docstrings and blank lines."""
    lines = [line for line, _ in explained_lines(path)]
    text = "\n".join(lines)
    docstrings = set()
    with contextlib.suppress(SyntaxError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings |= {*range(node.lineno, node.end_lineno + 1)}
    return [
        line
        for row, line in enumerate(lines, 1)
        if line and row not in docstrings and not HEADING.match(line)
    ]


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
        before, after = (
            [line for line, _ in explained_lines(path)] for path in (self.parent, self.child)
        )
        names = self.parent.name, self.child.name
        self.lines = list(difflib.unified_diff(before, after, *names, lineterm="", n=context))

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
        """Give a sentence for each of the diff's `lines`, "" where there is none.

        It says why an added line is there, and what a line did that is gone.
        """
        stay = {line.strip() for line in code_lines(self.child)}  # a line that stays has only moved
        removed = reasons(self.parent).items()
        gone = {line: f"Was: {why}" for line, why in removed if line.strip() not in stay}
        of_sign = {"+": reasons(self.child), "-": gone}
        return [of_sign.get(line[:1], {}).get(line[1:], "") for line in self.lines]

    def _repr_html_(self) -> str:
        rows = list(zip(self.lines, self.whys(), strict=True))[2:]
        explained = any(why and line.startswith("+") for line, why in rows)
        cells = ""
        for line, why in rows:
            cells += f'<tr style="background:transparent">{_code_cell(line)}'
            if explained:
                cells += f'<td style="{CELL};line-height:1.3">{with_code(why)}</td>'
            cells += "</tr>"
        widths = {"line": "62%", "why": "38%"} if explained else {"line": "100%"}
        head = "".join(
            f'<th scope="col" style="width:{width};{CELL}">{name}</th>'
            for name, width in widths.items()
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


def script_diff(script: str, parent: str | Path | None = None) -> ScriptDiff:
    """The diff of a script of the family to its parent, or to another script or file."""
    path = family.find(script)
    if parent is None:
        parent = family.SCRIPTS[str(script)].parent
    if parent is None:
        raise ValueError(f"{script} is the baseline: it has no parent to compare with")
    return ScriptDiff(path, family.find(parent))
