"""The changes of a training script against its parent, computed from both files when shown."""

import ast
import contextlib
import difflib
import functools
import html
import io
import re
import sys
import tokenize
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path

from bootcamp.scripts import strategies, variants
from bootcamp.table import with_code
from bootcamp.units import count

HEADING = re.compile(r"# \d\. ")


def pair_lines_with_reasons(path: Path) -> list[tuple[str, str]]:
    """Pair each line of a script, headings too, without its own comment with the one above it."""
    text = Path(path).read_text()
    comments = _find_comments(text)
    pairs, above = [], []
    for row, line in enumerate(text.splitlines(), 1):
        code = line if HEADING.match(line) else line[: comments.get(row)].rstrip()
        if row in comments and not code:
            above.append(line.strip(" #"))
        else:
            pairs.append((code, " ".join(above)))
            above = []
    return pairs


def is_reason(line: str) -> bool:
    """Whether a line is a comment, and no heading."""
    return line.strip().startswith("#") and not HEADING.match(line)


def _find_comments(text: str) -> dict[int, int]:
    """Map each row with a comment to its column; in broken Python, only rows of nothing else."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        rows = enumerate(text.splitlines(), 1)
        return {row: line.index("#") for row, line in rows if line.strip().startswith("#")}
    return {row: column for kind, _, (row, column), *_ in tokens if kind == tokenize.COMMENT}


def read_reasons(path: Path) -> Mapping[str, str]:
    """Map a script's lines, with their indentation, to the reasons written above them.

    A line that a script shares with an ancestor has the nearest ancestor's reason.
    """
    pairs = map(pair_lines_with_reasons, [Path(path), *strategies.list_ancestors(path)])
    return ChainMap(*({line: why for line, why in own if line and why} for own in pairs))


def list_code_lines(path: Path) -> list[str]:
    """List the lines of a script without comments, docstrings and blank lines."""
    lines = [line for line, _ in pair_lines_with_reasons(path)]
    docstrings = set()
    with contextlib.suppress(SyntaxError):
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings |= {*range(node.lineno, node.end_lineno + 1)}
    rows = enumerate(lines, 1)
    return [line for row, line in rows if line and row not in docstrings and line[0] != "#"]


def count_changed_lines(child: Path, parent: Path) -> tuple[int, int]:
    """Count code lines that a script (adds to its parent, removes); a changed one is in both."""
    before, after = list_code_lines(parent), list_code_lines(child)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return len(after) - same, len(before) - same


class ScriptDiff:
    """The changed lines of a script amid unchanged ones; in a notebook beside their reasons."""

    def __init__(self, child: Path, parent: Path, context: int = 2):
        self.child, self.parent = Path(child), Path(parent)
        added, removed = count_changed_lines(child, parent)
        names, files = (self.parent.name, self.child.name), (parent, child)
        self.title = f"{names[1]}: {count(added, 'code line')} added to {names[0]}, {removed} gone"
        before, after = ([line for line, _ in pair_lines_with_reasons(file)] for file in files)
        self.lines = list(difflib.unified_diff(before, after, *names, lineterm="", n=context))

    def __repr__(self) -> str:
        return "\n".join([self.title, *self.lines])

    def reasons(self) -> list[str]:
        """Give each line's reason, "" for none; a removed line has the one from the parent."""
        kept = {line.strip() for line in list_code_lines(self.child)}  # such a line has only moved
        before, after = ([*read_reasons(file).items()] for file in (self.parent, self.child))
        removed = {line: f"Was: {why}" for line, why in before if line.strip() not in kept}
        if not strategies.list_ancestors(self.child):  # a reason may stand over another line now
            after = [each for each in after if f"Was: {each[1]}" not in removed.values()]
        by_sign = {"+": dict(after), "-": removed}
        return [by_sign.get(line[:1], {}).get(line[1:], "") for line in self.lines]

    def _repr_html_(self) -> str:
        rows = list(zip(self.lines, self.reasons(), strict=True))[2:]
        explained = any(why and line.startswith("+") for line, why in rows)
        head = f'<th scope="col" style="{CELL}">line</th>'
        head += f'<th scope="col" style="width:38%;{CELL}">why</th>' if explained else ""
        body, reason = "", f'<td style="{CELL};line-height:1.3">{{}}</td>' if explained else ""
        for line, why in rows:
            cells = _code_cell(line) + reason.format(with_code(why))
            body += f'<tr style="background:transparent">{cells}</tr>'
        title = html.escape(self.title)
        return (
            f'<p><b>{title}</b></p><div role="region" aria-label="{title}">'
            '<table style="table-layout:fixed;width:100%;border-collapse:collapse">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


CELL = "text-align:left;vertical-align:top;padding:1px 8px;border:0"
# light backgrounds with dark text: readable in a light and in a dark theme
SIGN_STYLES = {"+": "background:#d7ecff;color:#0b3a66", "-": "background:#ffe3c7;color:#6b3200"}


def _code_cell(line: str) -> str:
    """Set a line of the diff as a cell; a long line is continued further to the right."""
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
    """Compare a training script with its parent, or with another script or file."""
    parent = parent or strategies.describe(script).parent
    if parent is None:
        raise ValueError(f"{script} is the baseline: it has no parent to compare with")
    return ScriptDiff(strategies.find(script), strategies.find(parent))


@functools.wraps(variants.variant)
def variant(script: str, name: str, changes: dict[str, str]) -> Path:
    path = variants.variant(script, name, changes)
    if "ipykernel" in sys.modules:  # the notebook shows what differs
        from IPython.display import display

        display(ScriptDiff(path, strategies.find(script)))
    return path
